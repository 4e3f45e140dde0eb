"""Messages about invalid settings, one line each: the key as it was written, its value, what is expected."""

import difflib
import pathlib
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from sidecar.log import redacted
from sidecar.settings.field_types import expected
from sidecar.settings.model import Conflict
from sidecar.settings.removed import REMOVED
from sidecar.settings.tree import PREFIX, Leaf, groups, leaves

_MAX_CHARACTERS = 80  # of a key or a value
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The merged values as they were written, and where: in ``variables``, else in the file ``config``."""

    values: dict[str, Any]
    variables: frozenset[str]
    config: pathlib.Path | None

    def name(self, key: str) -> str:
        """A dotted key as its writer knows it."""
        leaf = _leaf(key)
        if leaf is not None and leaf.variable in self.variables:
            return _line(leaf.variable + key.removeprefix(leaf.key))
        default = leaf is not None and self.get(leaf.key) is None
        return f"{_line(key)} ({'default' if default else f'in {self.config}'})"

    def assignment(self, key: str, default: object = None) -> str:
        """A dotted key and its value as written; ``default`` if it was not set."""
        value = self.get(key)
        return f"{self.name(key)}={_value(default if value is None else value)}"

    def get(self, key: str) -> Any:
        """The value of a setting; None if there is none."""
        value: Any = self.values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


def message(detail: ErrorDetails, written: Written) -> str:
    """The line for one of pydantic's errors."""
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return unknown_key(key, written)
    if detail["type"] == "missing":
        return f"{written.name(key)}: missing"
    if detail["loc"][-1] == "[key]":
        key = ".".join(map(str, detail["loc"][:-2]))
        return f"{written.name(key)}, key {_value(detail['input'])}: {_problem(detail)}"
    return f"{written.assignment(key, detail['input'])}: {_problem(detail)}"


def conflict_message(conflict: Conflict, written: Written) -> str:
    """The line for a conflict, with the settings involved."""
    defaults = {leaf.key: leaf.default for leaf in leaves()}
    return f"{', '.join(written.assignment(key, defaults[key]) for key in conflict.keys)}: {conflict.problem}"


def unknown_variable(name: str) -> str:
    """The line for a variable that is no setting; its value stays out, as it may be a secret."""
    removed = REMOVED.get(name.removeprefix(PREFIX).lower().partition("__")[0])
    return f"{_line(name)}: {removed or _unknown(name.upper(), [leaf.variable for leaf in leaves()])}"


def unknown_key(key: str, written: Written) -> str:
    """The same for a key in the file."""
    removed = REMOVED.get(key.partition(".")[0])
    candidates = [] if _leaf(key) else [*(leaf.key for leaf in leaves()), *groups()]
    return f"{written.name(key)}: {removed or _unknown(key, candidates)}"


def _leaf(key: str) -> Leaf | None:
    """The setting that the key is, or is a part of."""
    return next((leaf for leaf in leaves() if f"{key}.".startswith(f"{leaf.key}.")), None)


def _problem(detail: ErrorDetails) -> str:
    """What a validator said, else what the setting expects, else pydantic's own message."""
    if detail["type"] == "model_type":
        return "expected mapping"
    text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else ""
    leaf = next((leaf for leaf in leaves() if leaf.key == ".".join(map(str, detail["loc"]))), None)
    if text or leaf is None:
        return text or detail["msg"][:1].lower() + detail["msg"][1:]
    return f"expected {expected(leaf.field)}"


def _unknown(name: str, candidates: list[str]) -> str:
    """Suggests a name of the same group, if there is one: the common beginning of its names does not count."""
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
