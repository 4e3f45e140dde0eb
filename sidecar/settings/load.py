"""From a file and an environment to settings, or to every fault there is in them."""

import pathlib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sidecar.errors import SettingsError
from sidecar.settings.faults import (
    Origins,
    broken_rule,
    broken_rules,
    field_fault,
    shown,
    unknown_key,
    unknown_variable,
)
from sidecar.settings.model import IMPOSSIBLE, Settings
from sidecar.settings.sources import Document, merged, read_environment, read_yaml
from sidecar.settings.tree import Path, groups


def load_settings(config: pathlib.Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings: ``environ`` before the file ``config`` before the defaults.

    Reads nothing but these two and the files that they name, and never the process's own environment.

    Raises:
        SettingsError: something in them can't be used; it has every fault, not just the first.
    """
    environment = read_environment(environ)
    document = Document() if config is None else read_yaml(config)
    values = merged(document.values, environment.values)
    faults = [unknown_variable(name) for name in environment.unknown]
    if document.fault:
        faults.append(f"{config}: {document.fault}")

    origins = Origins(values, environment.given, None if config is None else str(config))
    origins, baseline_faults = _with_baseline_file(origins)
    faults += baseline_faults
    settings, value_faults = _validated(origins, whole=document.fault is None)
    faults += value_faults
    if faults or settings is None:
        raise SettingsError(faults)
    return settings


def _with_baseline_file(origins: Origins) -> tuple[Origins, list[str]]:
    """The same with the baseline out of ``baseline_file``, where there is such a setting, and what is wrong with it."""
    path = origins.values.get("baseline_file")
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        return origins, []
    named = f"{origins.name(('baseline_file',))}={shown(path)}"
    if "baseline" in origins.values:
        return origins, [f"{named}, {origins.name(('baseline',))}: each excludes the other; keep one of them"]
    document = read_yaml(pathlib.Path(path))
    if document.fault:
        return origins, [f"{named}: {document.fault}"]
    if document.values.keys() != {"baseline"}:
        return origins, [f"{named}: has other keys than baseline; name a file that has this one alone at its top"]
    values = origins.values | {"baseline": document.values["baseline"]}
    return Origins(values, origins.variables, origins.config, baseline_file=path), []


def _validated(origins: Origins, *, whole: bool) -> tuple[Settings | None, list[str]]:
    """The settings, or their faults. With ``whole`` false some values could not be read, so no rule is judged."""
    known = {key: value for key, value in origins.values.items() if key in Settings.model_fields}
    faults = [unknown_key((key,), origins) for key in origins.values if key not in known]
    settings, error = _attempt(known)
    if error is None:
        return settings, faults
    details = [detail for detail in error.errors() if detail["type"] != IMPOSSIBLE]
    faults += [field_fault(detail, origins) for detail in details]
    wrong = {_setting(detail["loc"]) for detail in details}
    if wrong:  # pydantic judges rules only where every value is sound: judge those among the sound ones now
        _, error = _attempt(_without(known, wrong))
    rules = broken_rules(error) if error is not None and whole else ()
    faults += [broken_rule(rule, origins) for rule in rules if wrong.isdisjoint(rule.paths)]
    return None, faults


def _attempt(values: dict[Any, Any]) -> tuple[Settings | None, ValidationError | None]:
    try:
        return Settings(**values), None
    except ValidationError as error:
        return None, error


def _setting(path: Path) -> Path:
    """The part of a path that names a setting, or a whole group."""
    return path[:2] if path[0] in groups() else path[:1]


def _without(values: dict[Any, Any], wrong: set[Path]) -> dict[Any, Any]:
    kept = {key: value for key, value in values.items() if (key,) not in wrong}
    for name in groups().keys() & kept.keys():
        kept[name] = {key: value for key, value in kept[name].items() if (name, key) not in wrong}
    return kept
