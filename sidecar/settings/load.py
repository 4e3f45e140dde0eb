"""Loads the settings from a file and an environment, or reports all that is wrong, a line each."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from sidecar.errors import SettingsError
from sidecar.log import redacted
from sidecar.settings.files import read_yaml
from sidecar.settings.groups import PREFIX, Settings, groups, keys, variable

# Kubernetes puts these into every container for a Service whose name begins with "specdec"
# (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
# ``…_PORT`` could also be meant as a setting, so there the value must be Kubernetes' too.
_SERVICE_LINK: Final = re.compile(
    r"SPECDEC_(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_)\w*=.*|SPECDEC_(\w+_)?PORT=(tcp|udp|sctp)://.*",
    re.ASCII | re.DOTALL,
)
# Pydantic's names, of models and dataclasses.
_UNKNOWN: Final = {"extra_forbidden", "unexpected_keyword_argument"}
_MAX_CHARACTERS: Final = 80  # of a key or a value in a message
_ASCENDING: Final = (
    ("scrape_interval", "latency_window"),
    ("latency_window", "history"),
    ("thresholds.acceptance_net_negative", "thresholds.acceptance_break_even"),
    ("thresholds.speedup_net_negative", "thresholds.speedup_net_positive"),
    ("thresholds.acceptance_fewer_tokens", "thresholds.acceptance_more_tokens"),
)


class _Environment(BaseSettings, Settings):
    """The settings as variables."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        # json_text decodes, so that bad JSON is reported with all other errors
        enable_decoding=False,
    )


def load_settings(config: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings; ``environ`` overrides the file ``config``, which overrides the defaults.

    Reads only these two and the files they name, never the process's own environment. An empty
    variable counts as not set.

    Raises:
        SettingsError: with a line for everything that is wrong, not only the first.
    """
    given = {
        name: text
        for name, text in environ.items()
        if name.startswith(PREFIX) and text.strip() and not is_service_link(name, text)
    }
    variables = {key: given[variable(key)] for key in keys() if variable(key) in given}
    sources = _Sources(variables, config)

    # Their values stay out, as they may be secrets.
    unknown = sorted(given.keys() - map(variable, variables))
    problems = [
        f"{_line(name)}: {_advice(name.upper(), map(variable, keys()))}" for name in unknown
    ]

    try:
        file = {} if config is None else read_yaml(config)
    except ValueError as error:
        file = None
        problems.append(f"{config}: {error}")

    values = _merged(file or {}, variables)
    try:
        settings, invalid = Settings.model_validate(values), set()
    except ValidationError as error:
        problems += (sources.problem(detail, values) for detail in error.errors())
        invalid = {detail["loc"][0] for detail in error.errors()}
        settings = Settings.model_validate(
            {name: value for name, value in values.items() if name not in invalid}
        )

    if file is not None:  # which might resolve a conflict
        problems += sources.conflicts(settings, invalid)
    if problems:
        raise SettingsError(problems)
    return settings


def is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes created this variable for a Service."""
    return bool(_SERVICE_LINK.fullmatch(f"{name}={text}"))


def _merged(file: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Both merged; ``variables`` override.

    A group that is no mapping in the file stays, to be reported.
    """
    source = EnvSettingsSource(_Environment)
    # Not those of the process.
    source.env_vars = {variable(key).lower(): text for key, text in variables.items()}

    merged = dict(file)
    for name, value in source().items():
        below = merged.get(name)
        if not isinstance(value, dict):
            merged[name] = value
        elif below is None or isinstance(below, dict):
            merged[name] = (below or {}) | value
    return merged


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where settings come from: ``variables``, by key, override the file ``config``.

    Messages name the source.
    """

    variables: Mapping[str, str]
    config: Path | None

    def problem(self, detail: ErrorDetails, values: Mapping[str, Any]) -> str:
        """The line for one of pydantic's errors in ``values``.

        It has the name as it was written, the value, and what is wrong.
        """
        path = [str(part) for part in detail["loc"]]
        if detail["type"] in _UNKNOWN:  # the value stays out, as it may be a secret
            return f"{self._name(path)}: {_advice('.'.join(path), [*keys(), *groups()])}"

        text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
        written = _written(detail, values)
        is_out_of_range = isinstance(detail["input"], float) and "_than_" in detail["type"]
        if isinstance(written, str) and is_out_of_range:
            text += " seconds"  # only a duration's text is read before its range is checked
        return f"{self._name(path)}={_shown(written)}: {text[:1].lower()}{text[1:]}"

    def conflicts(self, settings: Settings, invalid: set[int | str]) -> Iterator[str]:
        """A line for each contradiction between settings that are valid by themselves."""
        for lower, higher in _ASCENDING:
            low, high = attrgetter(lower)(settings), attrgetter(higher)(settings)
            if low > high and not invalid & {lower.partition(".")[0], higher.partition(".")[0]}:
                order = "the first must not be above the second"
                yield f"{self._setting(lower)}={low:g}, {self._setting(higher)}={high:g}: {order}"
        for measured in ("baseline", "plain_steps", "plain_cache"):
            if settings.baseline_file is not None and getattr(settings, measured):
                names = f"{self._setting('baseline_file')}, {self._setting(measured)}"
                yield f"{names}: mutually exclusive; keep one of them"

    def _setting(self, key: str) -> str:
        return variable(key) if key in self.variables else key

    def _name(self, path: list[str]) -> str:
        """A setting, or a part of one, as its writer knows it."""
        for depth in (1, 2):
            if (key := ".".join(path[:depth])) in self.variables:
                return _line(".".join([variable(key), *path[depth:]]))
        return f"{_line('.'.join(path))} (in {self.config})"


def _advice(name: str, known: Iterable[str]) -> str:
    """What to do about a name that is not one of those ``known``."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.9)
    return f"unknown setting; did you mean {close[0]}?" if close else "unknown setting; remove it"


def _written(detail: ErrorDetails, values: Mapping[str, Any]) -> object:
    """The value as it was written; pydantic's own input may already have been converted."""
    value: object = values
    for part in detail["loc"]:
        if not isinstance(value, dict) or part not in value:
            return detail["input"]
        value = value[part]
    return value


def _shown(value: object) -> str:
    """A value without credentials, and without the contents of a list or mapping."""
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    return _line(redacted(str(value)))


def _line(text: str) -> str:
    """The text without control characters, cut at 80 characters."""
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
