"""The files that operators write: YAML, whether they have changed, and the web configuration.

The web configuration (TLS and basic auth) has the format of Prometheus' exporter-toolkit,
https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md; other keys
than those below are refused, never ignored. Paths in it are relative to the file.
"""

import secrets
import ssl
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import Field, InstanceOf, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from sidecar.settings.field_types import Group, from_text

_MAX_BYTES: Final = 1024 * 1024
_TYPED: Final = {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}
Stamp = tuple[int, int, int] | None


class _Loader(yaml.SafeLoader):
    """Scalars stay text, as in the environment, so that pydantic reads both alike.

    Duplicate keys are errors.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TYPED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key.value[:80]!r}", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return node


def stamp(path: Path) -> Stamp:
    """A value that changes with the file; None: no file.

    It also changes if a mounted Secret or ConfigMap swaps the link to the file.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a file of at most 1 MiB; an empty file holds an empty one.

    Raises:
        ValueError: there is none; the message says why.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        is_short = len(content) <= _MAX_BYTES
        # _Loader is a SafeLoader.
        values = yaml.load(content.decode(), _Loader) if is_short else None  # noqa: S506 - safe
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line} is not valid YAML: {error.problem}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError):
        # Also for control characters and deeply nested brackets.
        raise ValueError("not valid YAML in UTF-8") from None

    if not is_short or not isinstance(values, dict | None):
        raise ValueError("expected at most 1 MiB, with one setting per line, as key: value")
    return {str(key): value for key, value in (values or {}).items()}


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


class _WebFile(Group):
    tls_server_config: _TlsServer | None = None
    basic_auth_users: dict[_UserName, _Hash] = Field({}, max_length=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The contents of a file.

    ``users`` maps names to bcrypt hashes; ``files`` are all that were read, as they were.
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

    named = () if tls is None else (tls.cert_file, tls.key_file, tls.client_ca_file)
    files = {path: before} | {
        file: stamp(file) for file in (path.parent / name for name in named if name is not None)
    }
    context = None if tls is None else _context(tls, path.parent)
    return WebConfig(files=files, users=content.basic_auth_users, tls=context)


def locked_web_config(path: Path | None) -> WebConfig:
    """What takes the place of a web configuration that cannot be used: no password opens a page.

    Without it, an invalid file would open what it was meant to protect. ``path`` is the file, if
    it is known, to be read again once it changes.
    """
    # A hash of no known password: 22 digits are the salt, the last of which has 2 bits.
    digits = "".join(secrets.choice(_BCRYPT_DIGITS) for _ in range(52))
    users = {"locked": f"$2b$04${digits[:21]}.{digits[21:]}"}
    files = {} if path is None else {path: stamp(path)}
    return WebConfig(files=files, users=users, tls=None, is_locked=True)


def _problem(detail: ErrorDetails) -> str:
    """The line for an error, without what may be secret.

    That is the input, which may be a password, and the hash of a htpasswd line.
    """
    key = ".".join(str(part).partition(":")[0][:80] for part in detail["loc"][:2])
    problem = _PROBLEMS.get(detail["type"]) or detail["msg"][:1].lower() + detail["msg"][1:]
    return f"{key}: {problem}"


def _context(tls: _TlsServer, folder: Path) -> ssl.SSLContext:
    if (tls.client_ca_file is None) != (tls.client_auth_type == "NoClientCert"):
        raise ValueError("client_ca_file and a client_auth_type that verifies must be set together")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.set_alpn_protocols(["http/1.1"])
    authorities = [tls.client_ca_file] if tls.client_ca_file else []
    try:
        for name in (tls.cert_file, tls.key_file, *authorities):
            (folder / name).open("rb").close()  # ssl's own error would not name it
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
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


def shipped(name: str) -> Path:
    """A file or folder of ``alerts/``: in the installed package, else in the repository around."""
    package = Path(__file__).parent.parent
    packaged = package / "alerts" / name
    return packaged if packaged.exists() else package.parent / "alerts" / name
