"""Loads the settings from a file and an environment, or reports everything that is wrong with them."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from sidecar.errors import SettingsError
from sidecar.settings.messages import Written, unknown_variable
from sidecar.settings.model import Settings, conflicts
from sidecar.settings.tree import PREFIX, keys, variable
from sidecar.settings.yaml_file import read_yaml

# Kubernetes puts these into every container for a Service whose name begins with "specdec"
# (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables). ``…_PORT`` could also be
# meant as a setting, so there the value must be Kubernetes' too.
_SERVICE_LINK = re.compile(
    r"SPECDEC_(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_)\w*=.*|SPECDEC_(\w+_)?PORT=(tcp|udp|sctp)://.*",
    re.ASCII | re.DOTALL,
)


class _Environment(BaseSettings, Settings):
    """The settings as variables."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        enable_decoding=False,  # json_text decodes, so that bad JSON is reported with all other errors
    )


def load_settings(config: pathlib.Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings; ``environ`` overrides the file ``config``, which overrides the defaults.

    Reads only these two and the files they name, never the process's own environment. An empty variable counts as
    not set.

    Raises:
        SettingsError: with a line for everything that is wrong, not only the first.
    """
    given = {
        name: text
        for name, text in environ.items()
        if name.startswith(PREFIX) and text.strip() and not is_service_link(name, text)
    }
    known = set(map(variable, keys()))
    problems = [unknown_variable(name) for name in sorted(given.keys() - known)]
    variables = {name: text for name, text in given.items() if name in known}
    file: dict[str, Any] | None = None
    try:
        file = {} if config is None else read_yaml(config)
    except ValueError as error:
        problems.append(f"{config}: {error}")
    written = Written(variables, config)
    problems += (written.unknown_key(name) for name in file or {} if name not in Settings.model_fields)
    settings, invalid = _validated(_merged(file or {}, variables), written, problems)
    if file is not None:  # which might resolve a conflict
        problems += (text for names, text in conflicts(settings, written.setting) if not invalid.intersection(names))
    if problems:
        raise SettingsError(problems)
    return settings


def is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes created this variable for a Service."""
    return bool(_SERVICE_LINK.fullmatch(f"{name}={text}"))


def _merged(file: dict[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Both merged, the environment first. A group that is no mapping in the file stays, to be reported."""
    source = EnvSettingsSource(_Environment)
    source.env_vars = {name.lower(): text for name, text in variables.items()}  # not those of the process
    merged = {name: value for name, value in file.items() if name in Settings.model_fields}
    for name, value in source().items():
        below = {} if file.get(name) is None else file[name]
        if not isinstance(value, dict):
            merged[name] = value
        elif isinstance(below, dict):
            merged[name] = below | value
    return merged


def _validated(values: dict[str, Any], written: Written, problems: list[str]) -> tuple[Settings, set[str]]:
    """The settings without those that are invalid, and the names of these; adds a line for each to ``problems``."""
    try:
        return Settings(**values), set()
    except ValidationError as error:
        problems += (written.message(detail, values) for detail in error.errors())
        invalid = {str(detail["loc"][0]) for detail in error.errors()}
        return Settings(**{name: value for name, value in values.items() if name not in invalid}), invalid
