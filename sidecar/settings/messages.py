"""Messages about invalid settings, one line each: the name as it was written, its value, what is wrong."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

from sidecar.log import redacted
from sidecar.settings.tree import groups, keys, variable

_MAX_CHARACTERS = 80  # of a key or a value


@dataclass(frozen=True, slots=True)
class Written:
    """Where settings were written: in ``variables``, else in the file ``config``."""

    variables: Collection[str]
    config: Path | None

    def message(self, detail: ErrorDetails, values: Mapping[str, Any]) -> str:
        """The line for one of pydantic's errors in ``values``."""
        name = self._name([str(part) for part in detail["loc"]])
        if detail["type"] == "extra_forbidden":
            return self.unknown_key(".".join(map(str, detail["loc"])))
        text = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
        value = _typed(detail, values)
        if isinstance(value, str) and isinstance(detail["input"], float) and "_than_" in detail["type"]:
            text += " seconds"  # only a duration's text is read before its range is checked
        return f"{name}={_value(value)}: {text[:1].lower()}{text[1:]}"

    def unknown_key(self, key: str) -> str:
        """The line for a key of the file that is no setting."""
        return f"{self._name(key.split('.'))}: {_unknown(key, [*keys(), *groups()])}"

    def setting(self, key: str) -> str:
        """A setting that may also have its default."""
        return variable(key) if variable(key) in self.variables else key

    def _name(self, path: list[str]) -> str:
        """A setting, or a part of one, as its writer knows it."""
        for depth in (1, 2):
            name = variable(".".join(path[:depth]))
            if name in self.variables:
                return _line(".".join([name, *path[depth:]]))
        return f"{_line('.'.join(path))} (in {self.config})"


def unknown_variable(name: str) -> str:
    """The line for a variable that is no setting; its value stays out, as it may be a secret."""
    return f"{_line(name)}: {_unknown(name.upper(), map(variable, keys()))}"


def _unknown(name: str, known: Iterable[str]) -> str:
    """Says what the ``name``, which is not one of those ``known``, may have been meant for."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.9)
    return f"unknown setting; did you mean {close[0]}?" if close else "unknown setting; remove it"


def _typed(detail: ErrorDetails, values: Mapping[str, Any]) -> object:
    """What was written, of which ``detail`` may have what it was read as."""
    found: object = values
    for part in detail["loc"]:
        if not isinstance(found, dict) or part not in found:
            return detail["input"]
        found = found[part]
    return found


def _value(value: object) -> str:
    """A value without credentials, and without the contents of a list or mapping."""
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    return _line(redacted(str(value)))


def _line(text: str) -> str:
    """The text without control characters, cut at 80 characters."""
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
