"""Loads the settings from a file and an environment, or reports everything that is wrong with them."""

import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, InitSettingsSource

from sidecar.errors import SettingsError
from sidecar.settings.messages import Written, conflict_messages, messages, unknown_variable
from sidecar.settings.model import Settings
from sidecar.settings.tree import PREFIX, leaves
from sidecar.settings.yaml_file import read_yaml

_MEASURED = ("baseline", "plain_steps")  # the keys of a baseline file
# Kubernetes puts these into every container for a Service whose name begins with "specdec"
# (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables). ``…_PORT`` could also be
# meant as a setting, so there the value must be Kubernetes' too.
_SERVICE_LINK = re.compile(
    r"SPECDEC_(\w+_)?SERVICE_(HOST|PORT(_\w+)?)=.*"
    r"|SPECDEC_(\w+_)?PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|SPECDEC_(\w+_)?PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*",
    re.ASCII | re.DOTALL,
)


def load_settings(config: pathlib.Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings; ``environ`` overrides the file ``config``, which overrides the defaults.

    Reads only these two and the files they name, never the process's own environment. An empty variable counts as
    not set.

    Raises:
        SettingsError: with a line for everything that is wrong, not only the first.
    """
    variables = {
        name: text for name, text in environ.items() if name.startswith(PREFIX) and not is_service_link(name, text)
    }
    known = {leaf.variable for leaf in leaves()}
    problems = [unknown_variable(name) for name in sorted(variables.keys() - known)]
    given = {name: text for name, text in variables.items() if name in known and text.strip()}
    file: dict[Any, Any] = {}
    readable = True
    try:
        file = {} if config is None else read_yaml(config)
    except ValueError as error:
        problems.append(f"{config}: {error}")
        readable = False
    written = Written(_merged(file, _environment(given)), frozenset(given), str(config) if config else None)
    try:
        written = _with_baseline_file(written)
    except ValueError as error:
        problems.append(str(error))
    try:
        settings = _settings(written.values)
    except ValidationError as error:
        problems += messages(error, written)
        problems += _conflicts(error, written) if readable else ()
    if problems:
        raise SettingsError(problems)
    return settings


def is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes created this variable for a Service."""
    return bool(_SERVICE_LINK.fullmatch(f"{name}={text}"))


def _environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The settings in the variables given, not in the process's own, as pydantic-settings nests them."""
    source = EnvSettingsSource(Settings, case_sensitive=False)
    source.env_vars = {name.lower(): text for name, text in variables.items()}
    return source()


def _settings(values: dict[Any, Any]) -> Settings:
    return Settings(_build_sources=((InitSettingsSource(Settings, values),), {}))


def _merged(file: dict[Any, Any], environment: dict[str, Any]) -> dict[Any, Any]:
    """Both merged, the environment first. A group that is no mapping in the file stays, to be reported."""
    merged = dict(file)
    for name, value in environment.items():
        below = {} if file.get(name) is None else file[name]
        if not isinstance(value, dict):
            merged[name] = value
        elif isinstance(below, dict):
            merged[name] = below | value
    return merged


def _with_baseline_file(written: Written) -> Written:
    """The same with the contents of ``baseline_file``, if there is one.

    Raises:
        ValueError: it cannot be used; the message is the line to report.
    """
    path = written.values.get("baseline_file")
    if not isinstance(path, str):
        return written
    name = written.assignment(("baseline_file",))
    for key in _MEASURED:
        if written.values.get(key) is not None:
            raise ValueError(f"{name}, {written.name((key,))}: mutually exclusive; keep one of them")
    try:
        values = read_yaml(pathlib.Path(path))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not values or not values.keys() <= set(_MEASURED):
        raise ValueError(f"{name}: expected a YAML file with only the keys {' and '.join(_MEASURED)} at its top")
    return replace(written, values=written.values | values, baseline_file=path)


def _conflicts(error: ValidationError, written: Written) -> Iterator[str]:
    """Conflicts between the settings; pydantic looks for them only if every value is valid by itself."""
    invalid = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}
    try:
        _settings({name: value for name, value in written.values.items() if name not in invalid})
    except ValidationError as found:
        yield from conflict_messages(found, written, invalid)
