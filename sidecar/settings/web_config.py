"""The web configuration file: TLS and basic auth, in the format of Prometheus' exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md; other keys than those below are
refused, never ignored. Paths are relative to the file.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, WithJsonSchema

from sidecar.settings.yaml_file import Stamp, read_yaml, stamp

_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_UserName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^:\x00-\x1f\x7f]+$")]
# A check takes 0.4 s at cost 13, and twice as long for each step above that.
_Hash = Annotated[str, Field(pattern=r"^\$2[aby]\$(0[4-9]|1[0-3])\$[./A-Za-z0-9]{53}$")]
_PROBLEMS = {
    "extra_forbidden": "not supported; remove it",
    "missing": "missing",
    "string_pattern_mismatch": "expected a name without a colon, and a bcrypt hash of cost 4 to 13",
}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _TlsServer(_Part):
    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class _File(_Part):
    tls_server_config: _TlsServer | None = None
    basic_auth_users: dict[_UserName, _Hash] = Field({}, max_length=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The contents of a file: ``users`` maps names to bcrypt hashes; ``files`` are all that were read, as they were."""

    files: Mapping[Path, Stamp]
    users: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None = field(compare=False)

    def __str__(self) -> str:
        return ", ".join(map(str, self.files))


def read_web_config(path: Path) -> WebConfig:
    """The web configuration in ``path``, with the certificates that it names. Blocks.

    Raises:
        ValueError: it cannot be used; the message says why, and contains no hash and no key.
    """
    before = stamp(path)
    try:
        found = _File.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ValueError("; ".join(_problems(error))) from None
    tls = found.tls_server_config
    if tls is None and not found.basic_auth_users:
        raise ValueError("neither tls_server_config nor basic_auth_users is set")
    named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls is not None else ()
    files = {path: before} | {file: stamp(file) for file in (path.parent / name for name in named if name is not None)}
    return WebConfig(files=files, users=found.basic_auth_users, tls=None if tls is None else _context(tls, path.parent))


def _read(value: object) -> object:
    return read_web_config(Path(value)) if isinstance(value, str) else value


WebConfigFile = Annotated[
    InstanceOf[WebConfig], BeforeValidator(_read), WithJsonSchema({"format": "path of a web configuration file"})
]


def _context(tls: _TlsServer, folder: Path) -> ssl.SSLContext:
    if (tls.client_ca_file is None) != (tls.client_auth_type == "NoClientCert"):
        raise ValueError("client_ca_file and a client_auth_type that verifies must be set together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.set_alpn_protocols(["http/1.1"])
    try:
        for name in (tls.cert_file, tls.key_file, *([tls.client_ca_file] if tls.client_ca_file else ())):
            (folder / name).open("rb").close()  # ssl's own error would not name it
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(folder / tls.cert_file, folder / tls.key_file, password="")
        if tls.client_ca_file is not None:
            context.load_verify_locations(folder / tls.client_ca_file)
    except ssl.SSLError as error:
        problem = f"not usable PEM files, or certificate and key do not match ({error.reason or 'no certificate'})"
        raise ValueError(f"tls_server_config: {problem}") from None
    except OSError as error:
        raise ValueError(f"tls_server_config: {error.filename}: cannot be read: {error.strerror}") from None
    context.verify_mode = _VERIFY[tls.client_auth_type]
    return context


def _problems(error: ValidationError) -> list[str]:
    """A line for each error; the input, which may be a password, stays out, and of a line of htpasswd's the hash."""
    return [
        f"{'.'.join(str(part).partition(':')[0][:80] for part in detail['loc'][:2])}: "
        f"{_PROBLEMS.get(detail['type']) or detail['msg'][:1].lower() + detail['msg'][1:]}"
        for detail in error.errors(include_input=False, include_url=False)
    ]
