"""The web configuration file: TLS and basic auth of one server, in the format of Prometheus' exporter-toolkit.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md; other keys than those below are
refused, never ignored. Paths are relative to the file.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sidecar.settings.field_types import Notation
from sidecar.settings.yaml_file import read_yaml, shown

_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_UserName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^:\x00-\x1f\x7f]+$")]
# A check takes 0.4 s at cost 13, and twice as long for each step above that.
_Hash = Annotated[str, Field(pattern=r"^\$2[aby]\$(0[4-9]|1[0-3])\$[./A-Za-z0-9]{53}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _TlsServer(_Part):
    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    @model_validator(mode="after")
    def _has_a_use_for_its_ca(self) -> Self:
        if (self.client_ca_file is None) != (self.client_auth_type == "NoClientCert"):
            raise ValueError("client_ca_file and a client_auth_type that verifies must be set together")
        return self


class _File(_Part):
    tls_server_config: _TlsServer | None = None
    basic_auth_users: dict[_UserName, _Hash] = Field({}, max_length=32)

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.tls_server_config is None and not self.basic_auth_users:
            raise ValueError("neither tls_server_config nor basic_auth_users is set")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The contents of a file: ``users`` maps names to bcrypt hashes; ``files`` are all that were read."""

    tls: ssl.SSLContext | None
    users: Mapping[str, str]
    files: tuple[Path, ...]


def read_web_config(path: Path) -> WebConfig:
    """The web configuration in ``path``, with the certificates that it names. Blocks.

    Raises:
        ValueError: it cannot be used; the message says why, and contains no hash and no key.
    """
    try:
        found = _File.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ValueError("; ".join(_problems(error))) from None
    tls = found.tls_server_config
    named = (tls.cert_file, tls.key_file, tls.client_ca_file) if tls is not None else ()
    return WebConfig(
        tls=None if tls is None else _context(tls, path.parent),
        users=found.basic_auth_users,
        files=(path, *(path.parent / name for name in named if name is not None)),
    )


def _checked(path: Path) -> Path:
    read_web_config(path)
    return path


def _checked_without_users(path: Path) -> Path:
    if read_web_config(path).users:
        raise ValueError("basic_auth_users cannot be used here: the header Authorization is vLLM's")
    return path


WebConfigFile = Annotated[Path, AfterValidator(_checked), Notation("path of a web configuration file")]
TlsConfigFile = Annotated[
    Path, AfterValidator(_checked_without_users), Notation("path of a web configuration file without basic_auth_users")
]


def _context(tls: _TlsServer, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(folder / tls.cert_file, folder / tls.key_file, password="")
    except OSError as error:
        raise ValueError(f"tls_server_config.cert_file, key_file: {_reason(error)}") from None
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(folder / tls.client_ca_file)
        except OSError as error:
            raise ValueError(f"tls_server_config.client_ca_file: {_reason(error)}") from None
    context.verify_mode = _VERIFY[tls.client_auth_type]
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a usable PEM file, or certificate and key do not match ({error.reason or 'no certificate'})"
    return f"cannot be read: {error.strerror}"


def _problems(error: ValidationError) -> list[str]:
    problems = []
    for detail in error.errors(include_input=False, include_url=False):
        key = ".".join(shown(str(part)) for part in detail["loc"][:2])
        match detail["type"]:
            case "extra_forbidden":
                problem = "not supported; remove it"
            case "missing":
                problem = "missing"
            case "string_pattern_mismatch" if detail["loc"][-1] != "[key]":
                problem = "not a bcrypt hash of cost 4 to 13"
            case "value_error":
                problem = str(detail["ctx"]["error"])
            case _:
                problem = detail["msg"][:1].lower() + detail["msg"][1:]
        problems.append(f"{key}: {problem}" if key else problem)
    return problems
