"""The web configuration: the file with which an operator turns on TLS and passwords.

It has the format of Prometheus' exporter-toolkit,
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md; other keys
than those below are refused, never ignored. Paths in it are relative to the file.
"""

import secrets
import ssl
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, InstanceOf, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from sidecar.settings.field_types import Group, from_text
from sidecar.settings.files import Stamp, read_yaml, stamp

_VERIFY: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_UserName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^:\x00-\x1f\x7f]+$")]
# A check takes 0.4 s at cost 13, and twice as long for each step above that.
_Hash = Annotated[str, Field(pattern=r"^\$2[aby]\$(0[4-9]|1[0-3])\$[./A-Za-z0-9]{53}$")]
_BCRYPT_DIGITS: Final = f"./{string.ascii_letters}{string.digits}"
_PROBLEMS: Final = {
    "extra_forbidden": "not supported; remove it",
    "missing": "missing",
    "string_pattern_mismatch": "expected a name without a colon, and a bcrypt hash of cost 4 to 13",
}


class _TlsServer(Group):
    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal[
        "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
    ] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    def files(self, folder: Path) -> list[Path]:
        """The files that it names, relative to ``folder``."""
        named = (self.cert_file, self.key_file, self.client_ca_file)
        return [folder / name for name in named if name is not None]


class _WebFile(Group):
    tls_server_config: _TlsServer | None = None
    basic_auth_users: dict[_UserName, _Hash] = Field({}, max_length=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The contents of a web configuration file.

    ``users`` maps names to bcrypt hashes; ``files`` has the stamps of all files that were read.
    ``is_locked``: the file cannot be used, and nobody has a password.
    """

    files: Mapping[Path, Stamp]
    users: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = field(compare=False)
    is_locked: bool = False

    def __str__(self) -> str:
        return ", ".join(map(str, self.files))


def read_web_config(path: Path) -> WebConfig:
    """The web configuration in ``path``, with the certificates that it names. Blocks.

    Raises:
        ValueError: it cannot be used; the message says why, and contains no hash and no key.
    """
    before = stamp(path)
    try:
        content = _WebFile.model_validate(read_yaml(path))
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
        raise ValueError("; ".join(map(_problem, details))) from None

    tls = content.tls_server_config
    if tls is None and not content.basic_auth_users:
        raise ValueError("neither tls_server_config nor basic_auth_users is set")

    files = {path: before}
    if tls is not None:
        files |= {file: stamp(file) for file in tls.files(path.parent)}

    context = None if tls is None else _context(tls, path.parent)
    return WebConfig(files=files, users=content.basic_auth_users, tls=context)


def locked_web_config(path: Path | None) -> WebConfig:
    """What takes the place of a web configuration that cannot be used: no password opens a page.

    Without it, an invalid file would open the pages that it was meant to protect. ``path`` is the
    file to watch for a change, if it is known.
    """
    # A hash of no known password. The first 22 digits are the salt; the last of them has 2 bits.
    digits = "".join(secrets.choice(_BCRYPT_DIGITS) for _ in range(52))
    users = {"locked": f"$2b$04${digits[:21]}.{digits[21:]}"}
    files = {} if path is None else {path: stamp(path)}
    return WebConfig(files=files, users=users, tls=None, is_locked=True)


def _problem(detail: ErrorDetails) -> str:
    """The line for an error, without what may be secret.

    That is the input, which may be a password, and the hash in a pasted htpasswd line.
    """
    key = ".".join(_key(part) for part in detail["loc"][:2])
    message = detail["msg"]
    problem = _PROBLEMS.get(detail["type"]) or message[:1].lower() + message[1:]
    return f"{key}: {problem}"


def _key(part: str | int) -> str:
    name, _, _ = str(part).partition(":")
    return name[:80]


def _context(tls: _TlsServer, folder: Path) -> ssl.SSLContext:
    if (tls.client_ca_file is None) != (tls.client_auth_type == "NoClientCert"):
        raise ValueError("client_ca_file and a client_auth_type that verifies must be set together")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.set_alpn_protocols(["http/1.1"])
    try:
        for file in tls.files(folder):
            file.open("rb").close()  # ssl's own error would not name it

        # Without ``password``, OpenSSL would ask for that of an encrypted key on the terminal.
        context.load_cert_chain(folder / tls.cert_file, folder / tls.key_file, password="")
        if tls.client_ca_file is not None:
            context.load_verify_locations(folder / tls.client_ca_file)
    except ssl.SSLError as error:
        problem = (
            "not usable PEM files, or certificate and key do not match"
            f" ({error.reason or 'no certificate'})"
        )
        raise ValueError(f"tls_server_config: {problem}") from None
    except OSError as error:
        raise ValueError(
            f"tls_server_config: {error.filename}: cannot be read: {error.strerror}"
        ) from None

    context.verify_mode = _VERIFY[tls.client_auth_type]
    return context


WebConfigFile = Annotated[
    InstanceOf[WebConfig],
    from_text(lambda path: read_web_config(Path(path))),
    WithJsonSchema({"type": "string", "format": "path of a web configuration file"}),
]
