"""Loads the settings from a file and an environment, or reports all that is wrong, line by line."""

import re
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from sidecar.errors import SettingsError
from sidecar.log import redacted
from sidecar.settings.files import read_yaml
from sidecar.settings.groups import (
    NOT_SETTINGS,
    PREFIX,
    SECRET,
    Settings,
    groups,
    keys,
    variable,
)
from sidecar.settings.web_config import locked_web_config

# Kubernetes puts these into every container for a Service whose name begins with "specdec"
# (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
# ``…_PORT`` could also be meant as a setting, so its value must look like Kubernetes' as well.
_SERVICE_LINK: Final = re.compile(
    r"SPECDEC_(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_)\w*=.*|SPECDEC_(\w+_)?PORT=(tcp|udp|sctp)://.*",
    re.ASCII | re.DOTALL,
)
# Pydantic's error types for an unknown key, in models and in dataclasses.
_UNKNOWN: Final = {"extra_forbidden", "unexpected_keyword_argument"}
_WEB: Final = "web_config_file"
# An unknown name that contains the first and one of the others was meant to protect the pages.
_WEB_LETTERS: Final = ("web", ("conf", "file"))
_MAX_CHARACTERS: Final = 80  # of a key or a value in a message
_CERTIFICATE: Final = ("vllm_cert_file", "vllm_key_file")
_BASELINE: Final = ("baseline_file", "baseline", "plain_steps", "plain_cache", "plain_endings")
_UNKNOWN_SETTING: Final = "unknown setting; correct or remove it"
# In each row, no setting may be above the next one. The defaults comply.
_ASCENDING: Final = (
    ("scrape_interval", "latency_window", "history"),
    ("thresholds.acceptance_net_negative", "thresholds.acceptance_break_even"),
    ("thresholds.speedup_net_negative", "thresholds.speedup_net_positive"),
    ("thresholds.acceptance_fewer_tokens", "thresholds.acceptance_more_tokens"),
)


class _Environment(BaseSettings, Settings):
    """The settings as variables."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        # ``json_text`` decodes instead, so that bad JSON is reported together with other errors.
        enable_decoding=False,
    )


def load_settings(config: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings; ``environ`` overrides the file ``config``, which overrides the defaults.

    Reads only these two and the files they name, never the process's own environment. An empty
    variable counts as not set.

    Raises:
        SettingsError: with a line for everything that is wrong, not only the first.
    """
    loaded = read_settings(config, environ)
    if loaded.problems:
        raise SettingsError(list(loaded.problems))
    return loaded.settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings in which every invalid one has its default.

    ``problems`` has a line for everything that is wrong. ``consequences`` has one for each valid
    setting that has its default as well, because its value would contradict another one's default.
    """

    settings: Settings
    problems: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()


def read_settings(config: Path | None, environ: Mapping[str, str]) -> LoadedSettings:
    """Like ``load_settings``, but replaces invalid settings by their defaults instead of raising.

    Settings that contradict each other, or the default of an invalid one, all get their defaults.
    Pages that were meant to have a password stay locked: see ``locked_web_config``.
    """
    given = _given_variables(environ)
    variables = {key: given[variable(key)] for key in keys() if variable(key) in given}
    sources = _Sources(variables, config)

    # Their values are left out, since they may be secrets.
    unknown = sorted(given.keys() - map(variable, variables))
    problems = [f"{_one_line(name)}: {_UNKNOWN_SETTING}" for name in unknown]

    try:
        file = {} if config is None else read_yaml(config)
    except ValueError as error:
        file = None
        problems.append(f"{config}: {error}")

    values = _merged(file or {}, variables)
    settings, invalid, messages = _valid(values, sources)
    problems += messages

    conflicts = list(sources.conflicts(settings))
    # Not reported: a conflict with the default of an invalid setting, or one that the settings in
    # an unreadable file might resolve.
    reported = [one for one in conflicts if file is not None and invalid.isdisjoint(one.keys)]
    problems += (one.line for one in reported)
    named = invalid.union(*(one.keys for one in reported))
    invalid = invalid.union(*(one.reset for one in conflicts))
    consequences = [
        f"{sources.name(key)}: also has its default"
        for key in sorted(invalid - named)
        if _is_given(key, values)
    ]
    if conflicts:
        settings = Settings.model_validate(_without(values, invalid))

    unused = [name.removeprefix(PREFIX).lower() for name in unknown] + sorted(invalid)
    if _protects_pages(unused, config if file is None else None):
        path = values.get(_WEB)
        locked = locked_web_config(Path(path) if isinstance(path, str) else None)
        settings = settings.model_copy(update={_WEB: locked})

    return LoadedSettings(
        settings=settings, problems=tuple(problems), consequences=tuple(consequences)
    )


def _given_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are meant as settings, known or not, and are not empty."""
    return {
        name: text
        for name, text in environ.items()
        if name.startswith(PREFIX)
        and name not in NOT_SETTINGS
        and text.strip()
        and not is_service_link(name, text)
    }


def _valid(
    values: Mapping[str, Any], sources: "_Sources"
) -> tuple[Settings, frozenset[str], list[str]]:
    """The settings, with defaults for invalid keys; these keys; and a line for each error.

    ``values`` are nested as in a file.
    """
    try:
        return Settings.model_validate(values), frozenset(), []
    except ValidationError as error:
        details = error.errors()

    invalid = frozenset(_key(detail["loc"]) for detail in details)
    settings = Settings.model_validate(_without(values, invalid))
    return settings, invalid, [sources.problem(detail, values) for detail in details]


def _key(location: tuple[int | str, ...]) -> str:
    """The setting in which pydantic found an error, or the group if it is in the group itself."""
    name, *below = map(str, location)
    return f"{name}.{below[0]}" if below and name in groups() else name


def _without(values: Mapping[str, Any], invalid: Collection[str]) -> dict[str, Any]:
    """The values without those of ``invalid`` keys."""
    kept = {name: value for name, value in values.items() if name not in invalid}
    for group in groups().keys() & kept.keys():
        if isinstance(kept[group], dict):
            kept[group] = {
                name: value
                for name, value in kept[group].items()
                if f"{group}.{name}" not in invalid
            }
    return kept


def _is_given(key: str, values: Mapping[str, Any]) -> bool:
    """Whether a setting has a value of its own."""
    group, _, name = key.rpartition(".")
    within = values.get(group) if group else values
    return isinstance(within, Mapping) and within.get(name) is not None


def _protects_pages(unused: Iterable[str], unread: Path | None) -> bool:
    """Whether a setting that is not in force was meant to turn on TLS or passwords.

    It is one of the ``unused`` names, or somewhere in the file ``unread``, which is not valid YAML.
    """
    letters = ["".join(filter(str.isalnum, name)).lower() for name in unused]
    web, others = _WEB_LETTERS
    if any(web in name and any(other in name for other in others) for name in letters):
        return True

    try:
        return unread is not None and _WEB.encode() in unread.read_bytes()
    except OSError:
        return False


def is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes created this variable for a Service."""
    return bool(_SERVICE_LINK.fullmatch(f"{name}={text}"))


def _merged(file: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Both merged; ``variables`` override.

    A group that is not a mapping in the file stays as it is, to be reported.
    """
    source = EnvSettingsSource(_Environment)
    # Instead of the process's own environment.
    source.env_vars = {variable(key).lower(): text for key, text in variables.items()}

    merged = dict(file)
    for name, value in source().items():
        below = merged.get(name)
        if not isinstance(value, dict):
            merged[name] = value
        elif below is None or isinstance(below, dict):
            merged[name] = (below or {}) | value

    return merged


class _Conflict(NamedTuple):
    """Settings that contradict each other, ``keys``, and all those that then get their defaults.

    Two conflicts have the same ``reset`` or no key of it in common, and its defaults agree.
    """

    keys: tuple[str, ...]
    reset: tuple[str, ...]
    line: str


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where settings come from: ``variables``, by key, override those in the file ``config``.

    Messages name the source.
    """

    variables: Mapping[str, str]
    config: Path | None

    def problem(self, detail: ErrorDetails, values: Mapping[str, Any]) -> str:
        """The line for one of pydantic's errors in ``values``.

        It has the name as it was written, the value, and what is wrong.
        """
        path = [str(part) for part in detail["loc"]]
        if detail["type"] in _UNKNOWN:  # without the value, since it may be a secret
            return f"{self._name(path)}: {_UNKNOWN_SETTING}"

        text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
        written = _written(detail, values)
        is_out_of_range = isinstance(detail["input"], float) and "_than_" in detail["type"]
        if isinstance(written, str) and is_out_of_range:
            text += " seconds"  # of all texts, only a duration's is parsed before this check

        is_secret = ".".join(path[:2]) in SECRET
        value = "" if is_secret else f"={_shown(written)}"
        return f"{self._name(path)}{value}: {text[:1].lower()}{text[1:]}"

    def conflicts(self, settings: Settings) -> Iterator[_Conflict]:
        """Each contradiction between settings."""
        for rising in _ASCENDING:
            for lower, higher in pairwise(rising):
                low = attrgetter(lower)(settings)
                high = attrgetter(higher)(settings)
                if low > high:
                    order = "the first must not be above the second"
                    names = f"{self.name(lower)}={low:g}, {self.name(higher)}={high:g}"
                    yield _Conflict((lower, higher), rising, f"{names}: {order}")

        if problem := _certificate_problem(settings):
            names = ", ".join(map(self.name, _CERTIFICATE))
            yield _Conflict(_CERTIFICATE, _CERTIFICATE, f"{names}: {problem}")

        given = [key for key in _BASELINE if getattr(settings, key)]
        if settings.baseline_file is not None and len(given) > 1:
            names = ", ".join(map(self.name, given))
            line = f"{names}: mutually exclusive; keep one of them"
            yield _Conflict(tuple(given), _BASELINE, line)

    def name(self, key: str) -> str:
        """A setting's name where it was set: its variable, or its key in the file."""
        return variable(key) if key in self.variables else key

    def _name(self, path: list[str]) -> str:
        """The same for a setting or a part of one, given by its path."""
        for depth in (1, 2):
            if (key := ".".join(path[:depth])) in self.variables:
                return _one_line(".".join([variable(key), *path[depth:]]))
        return f"{_one_line('.'.join(path))} (in {self.config})"


def _certificate_problem(settings: Settings) -> str:
    """Why the sidecar's client certificate cannot be used; empty if it can, or if none is set."""
    if settings.vllm_cert_file is None:
        return "the key needs a certificate" if settings.vllm_key_file is not None else ""

    try:
        settings.tls()
    except ssl.SSLError as error:
        reason = error.reason or "no key in the certificate's file"
        return f"not usable PEM files, or certificate and key do not match ({reason})"
    except OSError as error:
        return f"the key cannot be read: {error.strerror}"
    return ""


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
    return _one_line(redacted(str(value)))


def _one_line(text: str) -> str:
    """The text without control characters, cut at 80 characters."""
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
