"""Messages about invalid settings, one line each: the key as it was written, its value, what is expected."""

import difflib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sidecar.log import redacted
from sidecar.settings.field_types import expected
from sidecar.settings.groups import Target
from sidecar.settings.model import CONFLICT
from sidecar.settings.tree import PREFIX, groups, leaves

_MAX_CHARACTERS = 80  # of a key or a value
Path = tuple[str | int, ...]
_UNKNOWN_KEY = {"extra_forbidden", "invalid_key"}


@dataclass(frozen=True, slots=True)
class Written:
    """The merged values as they were written, and where: in ``variables``, else in the named file."""

    values: dict[Any, Any]
    variables: frozenset[str]
    config: str | None
    baseline_file: str | None = None

    def name(self, path: Path) -> str:
        """The key at ``path`` as its writer knows it."""
        leaf = next((leaf for leaf in leaves() if leaf.path == path[: len(leaf.path)]), None)
        if leaf is not None and leaf.variable in self.variables:
            return _line(".".join(map(str, (leaf.variable, *path[len(leaf.path) :]))))
        file = self.baseline_file if path[0] in {"baseline", "plain_steps"} and self.baseline_file else self.config
        default = leaf is not None and self.get(leaf.path) is None
        return f"{_line('.'.join(map(str, path)))} ({'default' if default else f'in {file}'})"

    def assignment(self, path: Path, default: object = None) -> str:
        """The key at ``path`` and its value as written; ``default`` if it was not set."""
        value = self.get(path)
        return f"{self.name(path)}={_value(default if value is None else value)}"

    def get(self, path: Path) -> Any:
        """The value at ``path``; None if there is none."""
        value: Any = self.values
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value


def messages(error: ValidationError, written: Written) -> Iterator[str]:
    """One line for each error except conflicts."""
    for detail in error.errors():
        if detail["type"] != CONFLICT:
            yield _message(detail, written)


def conflict_messages(error: ValidationError, written: Written, left_out: Collection[str]) -> Iterator[str]:
    """One line for each conflict, with the settings involved; none for those in ``left_out``."""
    defaults = {leaf.path: leaf.default for leaf in leaves()}
    for conflict in (one for detail in error.errors() for one in detail.get("ctx", {}).get("conflicts", ())):
        paths: list[tuple[str, ...]] = [tuple(key.split(".")) for key in conflict.keys]
        if not any(path[0] in left_out for path in paths):
            given = (written.assignment(path, defaults[path]) for path in paths)
            yield f"{', '.join(given)}: {conflict.problem}"


def unknown_variable(name: str) -> str:
    """The line for a variable that is no setting; its value stays out, as it may be a secret."""
    return f"{_line(name)}: {_unknown(name.upper(), [leaf.variable for leaf in leaves()])}"


def _message(detail: ErrorDetails, written: Written) -> str:
    path = detail["loc"]
    if detail["type"] in _UNKNOWN_KEY:
        return f"{written.name(path)}: {_unknown('.'.join(map(str, path)), _keys(path))}"
    if detail["type"] == "missing":
        return f"{written.name(path)}: missing"
    if path[-1] == "[key]":
        return f"{written.name(path[:-2])}, key {_value(detail['input'])}: {_problem(detail)}"
    return f"{written.assignment(path, detail['input'])}: {_problem(detail)}"


def _problem(detail: ErrorDetails) -> str:
    """What a validator said, else what the setting expects, else pydantic's own message."""
    if detail["type"] == "model_type":
        return "expected mapping"
    text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else ""
    leaf = next((leaf for leaf in leaves() if leaf.path == detail["loc"]), None)
    if text or leaf is None:
        return text or detail["msg"][:1].lower() + detail["msg"][1:]
    return f"expected {expected(leaf.field)}"


def _keys(path: Path) -> list[str]:
    """The keys that ``path`` may stand for: those of a target, else any setting."""
    if path[0] == "targets" and len(path) > 1:
        return [f"targets.{path[1]}.{name}" for name in Target.model_fields]
    return [*(leaf.key for leaf in leaves()), *groups()]


def _unknown(name: str, candidates: list[str]) -> str:
    """A suggestion from the same group, if there is one: the common beginning of its keys does not count."""
    separator = "__" if name.startswith(PREFIX) else "."
    group = name[: name.rfind(separator)] + separator
    prefix = next((one for one in (group, PREFIX) if any(key.startswith(one) for key in candidates)), "")
    names = [key.removeprefix(prefix) for key in candidates if key.startswith(prefix)]
    close = difflib.get_close_matches(name.removeprefix(prefix), names, n=1, cutoff=0.7)
    return f"unknown setting; did you mean {prefix}{close[0]}?" if close else "unknown setting; remove it"


def _value(value: object) -> str:
    """A value without credentials, and without the contents of a list or mapping."""
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    return _line(redacted(str(value)))


def _line(text: str) -> str:
    """The text without control characters, cut at 80 characters."""
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
