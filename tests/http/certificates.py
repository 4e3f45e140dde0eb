"""Certificates for real handshakes, made by Debian's openssl, and web configuration files that name them."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import yaml


def hashed(password: str, cost: int = 4) -> str:
    """The hash of a password, of the lowest cost."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


@dataclass(frozen=True)
class Authority:
    """A certificate authority; its certificates are for localhost and 127.0.0.1, for servers and clients."""

    folder: Path
    name: str = "ca"

    @classmethod
    def new(cls, folder: Path, name: str = "ca") -> "Authority":
        authority = cls(folder, name)
        authority._openssl(
            "-x509", "-keyout", authority.file("key"), "-out", authority.certificate, "-subj", f"/CN={name}"
        )
        return authority

    def _openssl(self, *arguments: object) -> None:
        options = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        subprocess.run(["openssl", *map(str, [*options, *arguments])], check=True, capture_output=True)

    def file(self, kind: str, name: str = "") -> Path:
        return self.folder / f"{name or self.name}.{kind}.pem"

    @property
    def certificate(self) -> Path:
        return self.file("certificate")

    def issue(self, name: str) -> tuple[Path, Path]:
        """A new certificate and its key; replaces those of the same name."""
        certificate, key = self.file("certificate", name), self.file("key", name)
        self._openssl(
            "-x509", "-CA", self.certificate, "-CAkey", self.file("key"), "-keyout", key, "-out", certificate,
            "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        return certificate, key

    def trusting(self, client: str = "") -> ssl.SSLContext:
        """A client's context that trusts this authority, with a certificate of its own if ``client`` names it."""
        context = ssl.create_default_context(cafile=self.certificate)
        if client:
            context.load_cert_chain(*self.issue(client))
        return context

    def web_config(self, tls: bool = True, users: dict[str, str] | None = None, **options: str) -> Path:
        """A web configuration file with a new certificate; ``users`` maps names to passwords."""
        values: dict = (
            {"basic_auth_users": {name: hashed(password) for name, password in users.items()}} if users else {}
        )
        if tls:
            certificate, key = self.issue("server")
            values["tls_server_config"] = {"cert_file": certificate.name, "key_file": key.name, **options}
        path = self.folder / "web.yaml"
        path.write_text(yaml.safe_dump(values))
        return path
