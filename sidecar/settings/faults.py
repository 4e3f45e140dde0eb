"""What is wrong with the settings, one line a fault: the key as it was written, its value, what to write."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sidecar.log import redacted
from sidecar.settings.model import IMPOSSIBLE, Broken
from sidecar.settings.tree import PREFIX, Path, dotted, leaves, siblings

_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Origins:
    """Where each value was written: ``variables`` by name, the rest in ``config``, a baseline in ``baseline_file``."""

    values: dict[Any, Any]
    variables: frozenset[str]
    config: str | None
    baseline_file: str | None = None

    def name(self, path: Path) -> str:
        """The key at ``path`` as its writer knows it."""
        leaf = next((leaf for leaf in leaves() if leaf.path == path[: len(leaf.path)]), None)
        if leaf is not None and leaf.variable in self.variables:
            return one_line(dotted((leaf.variable, *path[len(leaf.path) :])))
        if path[0] == "baseline" and self.baseline_file is not None:
            return f"{one_line(dotted(path))} (in {self.baseline_file})"
        written, _ = self._written(path if leaf is None else leaf.path)
        return f"{one_line(dotted(path))} ({f'in {self.config}' if written and self.config else 'default'})"

    def value(self, path: tuple[str, ...]) -> str:
        """The value at ``path`` as it was written, else its default."""
        written, value = self._written(path)
        return shown(value) if written else next(leaf.default or "" for leaf in leaves() if leaf.path == path)

    def _written(self, path: Path) -> tuple[bool, Any]:
        found: Any = self.values
        for part in path:
            if not isinstance(found, dict) or part not in found:
                return False, None
            found = found[part]
        return True, found


def shown(value: object) -> str:
    """A value for one line of a message, without what may be a credential, or what is inside a list or mapping."""
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return one_line(redacted(str(value)))


def one_line(text: str) -> str:
    """The text without control characters, cut at 80 characters."""
    text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def unknown_variable(name: str) -> str:
    """The fault of a variable that is no setting; its value stays out, as nobody knows what it is."""
    return f"{one_line(name)}: {_unknown(name.upper(), [leaf.variable for leaf in leaves()])}"


def unknown_key(path: Path, origins: Origins) -> str:
    """The fault of a key that is no setting; its value stays out, as nobody knows what it is."""
    return f"{origins.name(path)}: {_unknown(dotted(path), siblings(path))}"


def _unknown(name: str, candidates: list[str]) -> str:
    close = difflib.get_close_matches(
        name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in candidates], n=1, cutoff=0.7
    )
    prefix = PREFIX if name.startswith(PREFIX) else ""
    return f"unknown setting; did you mean {prefix}{close[0]}?" if close else "unknown setting; remove it"


def broken_rules(error: ValidationError) -> Iterator[Broken]:
    """The rules between settings that pydantic reported as broken."""
    for detail in error.errors():
        if detail["type"] == IMPOSSIBLE:
            yield from detail["ctx"]["broken"]


def broken_rule(broken: Broken, origins: Origins) -> str:
    """The fault of a broken rule, with every setting that has a part in it."""
    return f"{', '.join(f'{origins.name(path)}={origins.value(path)}' for path in broken.paths)}: {broken.fault}"


def field_fault(detail: ErrorDetails, origins: Origins) -> str:
    """The fault of one value."""
    path = detail["loc"]
    if detail["type"] in {"extra_forbidden", "invalid_key"}:
        return unknown_key(path, origins)
    if detail["type"] == "missing":
        return f"{origins.name(path)}: missing; write it"
    if path[-1] == "[key]":
        path = path[:-2]
        return f"{origins.name(path)}, key {shown(detail['input'])}: {_problem(detail)}"
    return f"{origins.name(path)}={shown(detail['input'])}: {_problem(detail)}"


def _problem(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "too_long":
            return f"too many entries; write at most {context['max_length']}"
        case "tuple_type":
            return "not a list; write one, each entry on a line of its own after a hyphen"
        case "model_type" | "dict_type":
            return "not a mapping; write its keys below it, as key: value"
        case _:
            return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}; see the settings reference"
