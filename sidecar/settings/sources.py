"""Where settings come from: a YAML file and environment variables, read into plain values, nothing checked yet."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from sidecar.settings.fields import Fields
from sidecar.settings.tree import PREFIX, groups, leaves

_FILE_BYTES = 1024 * 1024

# Kubernetes puts these into every container for a Service whose name begins with "specdec"
# (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables). ``…_PORT`` could also be
# meant as a setting, so there the value has to be Kubernetes' too.
_SERVICE_LINK = re.compile(r"SPECDEC_(\w+_)?SERVICE_(HOST|PORT(_\w+)?)=.*", re.ASCII | re.DOTALL)
_SERVICE_PORT_LINK = re.compile(
    r"SPECDEC_(\w+_)?PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|SPECDEC_(\w+_)?PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file's mapping; ``fault`` is "what is wrong; what to do" where there is none to be had."""

    values: dict[Any, Any] = field(default_factory=dict)
    fault: str | None = None


class _Loader(yaml.SafeLoader):
    """YAML's plain types only, and no key twice: of two values one would be lost without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value[:80]!r}", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node


def read_yaml(path: Path) -> Document:
    """The mapping that a file of at most 1 MiB holds; an empty file holds an empty one."""
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES + 1)
    except OSError as error:
        return Document(fault=f"can't be read ({error.strerror}); name a readable YAML file")
    if len(content) > _FILE_BYTES:
        return Document(fault="larger than 1 MiB; name a settings file")
    return _parsed(content)


def _parsed(content: bytes) -> Document:
    try:
        values = yaml.load(content.decode(), _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return Document(fault=f"line {line} is not UTF-8; write it as UTF-8")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return Document(fault=f"line {line} is not valid YAML ({error.problem}); correct it")
    except (yaml.YAMLError, ValueError, RecursionError):  # control characters, an impossible date, a tower of brackets
        return Document(fault="not valid YAML; correct it")
    if not isinstance(values, dict | None):
        return Document(fault="not a mapping; write one setting a line, as key: value")
    return Document(values or {})


class _Variables(EnvSettingsSource):
    """pydantic-settings' way from names to nested values, over a given mapping; lists and mappings stay text."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(Fields)
        self.env_vars = {name.lower(): text for name, text in given.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002 - overridden
        """The text itself: ``Structure`` reads it, so that its fault comes with all the others."""
        return value


@dataclass(frozen=True, slots=True)
class Environment:
    """``values`` nested as in YAML, ``given`` the variables they came from, ``unknown`` the names of no setting."""

    values: dict[str, Any]
    given: frozenset[str]
    unknown: tuple[str, ...]


def read_environment(environ: Mapping[str, str]) -> Environment:
    """The settings in ``environ``; an empty variable counts as not set, one of Kubernetes' as not there."""
    known = {leaf.variable for leaf in leaves()}
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    given = {name: text for name, text in ours.items() if name in known and text.strip()}
    unknown = sorted(name for name in ours.keys() - known if not is_service_link(name, ours[name]))
    return Environment(_Variables(given)(), frozenset(given), tuple(unknown))


def is_service_link(name: str, text: str) -> bool:
    """Whether a variable is one that Kubernetes made of a Service, and nobody's setting."""
    line = f"{name}={text}"
    return bool(_SERVICE_LINK.fullmatch(line) or _SERVICE_PORT_LINK.fullmatch(line))


def merged(document: dict[Any, Any], environment: dict[str, Any]) -> dict[Any, Any]:
    """Both in one, the environment before the file; a key of the file with nothing behind it counts as not set."""
    known = groups()
    values = _set(document, Fields)
    for name in known.keys() & values.keys():
        if isinstance(values[name], dict):
            values[name] = _set(values[name], known[name])
    for name, value in environment.items():
        below = values.get(name, {})
        if name not in known:
            values[name] = value
        elif isinstance(below, dict):  # else it is a fault, to be reported and not to be covered up
            values[name] = {**below, **value}
    return values


def _set(values: dict[Any, Any], model: type[BaseModel]) -> dict[Any, Any]:
    return {key: value for key, value in values.items() if value is not None or key not in model.model_fields}
