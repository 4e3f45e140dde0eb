"""Certificates for real handshakes, made by Debian's openssl.

Also web configuration files that name them.
"""

import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import bcrypt
import yaml

NEW = [
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
    "-days",
    "2",
]
SIGNING = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
OWN = [
    "-addext",
    "subjectAltName=DNS:localhost,IP:127.0.0.1",
    "-addext",
    "basicConstraints=critical,CA:FALSE",
]


def hashed(password: str, cost: int = 4) -> str:
    """The hash of a password, of the lowest cost."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


class Authority:
    """A certificate authority.

    Its certificates are for localhost and 127.0.0.1, for servers and clients.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "ca",
        *,
        below: "Authority | None" = None,
        extensions: Sequence[str] = SIGNING,
    ) -> None:
        """``below`` is the authority that signs its certificate; by default it does so itself."""
        self.folder = folder
        self.certificate, self._key = self._made(name, *extensions, signer=below)

    def _made(
        self, name: str, *options: object, signer: "Authority | None" = None
    ) -> tuple[Path, Path]:
        signed = () if signer is None else ("-CA", signer.certificate, "-CAkey", signer._key)
        certificate, key = (self.folder / f"{name}.{kind}.pem" for kind in ("certificate", "key"))
        command = [
            "openssl",
            *NEW,
            "-keyout",
            key,
            "-out",
            certificate,
            "-subj",
            f"/CN={name}",
            *signed,
            *options,
        ]
        subprocess.run(command, check=True, capture_output=True)
        return certificate, key

    def issue(self, name: str) -> tuple[Path, Path]:
        """A new certificate and its key; replaces those of the same name."""
        return self._made(name, *OWN, signer=self)

    def trusting(self, client: str = "") -> ssl.SSLContext:
        """A client's context that trusts this authority.

        It has a certificate of its own if ``client`` names it.
        """
        context = ssl.create_default_context(cafile=self.certificate)
        if client:
            context.load_cert_chain(*self.issue(client))
        return context

    def web_config(
        self, tls: bool = True, users: dict[str, str] | None = None, **options: str
    ) -> Path:
        """A web configuration file with a new certificate; ``users`` maps names to passwords."""
        values: dict = {
            "basic_auth_users": {name: hashed(password) for name, password in (users or {}).items()}
        }
        if tls:
            certificate, key = self.issue("server")
            values["tls_server_config"] = {
                "cert_file": certificate.name,
                "key_file": key.name,
                **options,
            }
        path = self.folder / "web.yaml"
        path.write_text(yaml.safe_dump(values))
        return path
