"""The kinds of value a setting can have: how each is read, what is said where it can't be, how it is documented.

A kind is put beside the type: ``Annotated[float, Duration(0.1, 300)]``. Every fault has the form
"what is wrong; what to write", so that a line made of key, value and fault is all that an operator needs.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Kind(ABC):
    """One kind of value; frozen, and without any state."""

    @abstractmethod
    def read(self, value: object) -> Any:
        """The setting's value from YAML's or the environment's.

        Raises:
            ValueError: the value can't be used; the message says why and what to write.
        """

    @abstractmethod
    def describe(self) -> str:
        """The type, the unit and the range, for the reference."""

    def show(self, value: Any) -> str:
        """A value as an operator would write it; ``read`` gives the same value back."""
        return str(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)


def read_number(value: object) -> float | None:
    """A number, or None for what is none; never NaN, and infinite only for what a float can't hold."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return None


def show_number(value: float) -> str:
    """The shortest text of a number that reads back as the same; whole ones without a point."""
    return str(int(value)) if value == int(value) else repr(value)


def show_seconds(seconds: float) -> str:
    """A duration in the largest unit that holds it in whole numbers, else in seconds."""
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    milliseconds = round(seconds * 1000)
    if seconds and milliseconds / 1000 == seconds and seconds < 1:
        return f"{milliseconds}ms"
    return f"{show_number(seconds)}s"


@dataclass(frozen=True, slots=True)
class Duration(Kind):
    """Seconds as a float, ``low`` to ``high`` inclusive; written as ``500ms``, ``1s``, ``5m``, ``1h`` or a number."""

    low: float
    high: float

    @override
    def read(self, value: object) -> float:
        """Seconds; a bare number is a number of seconds."""
        seconds = _seconds(value)
        if seconds is None:
            raise ValueError("not a duration; write a number of seconds or a value such as 500ms, 1s, 5m")
        if not self.low <= seconds <= self.high:
            raise ValueError(f"out of range; write {self._range()}")
        return seconds

    @override
    def describe(self) -> str:
        return f"duration, {self._range()}"

    @override
    def show(self, value: float) -> str:
        return show_seconds(value)

    def _range(self) -> str:
        return f"{show_seconds(self.low)} to {show_seconds(self.high)}"


def _seconds(value: object) -> float | None:
    if isinstance(value, str):
        text = value.strip()
        if text.endswith("ms"):
            number = read_number(text.removesuffix("ms"))
            return None if number is None else number / 1000  # times 0.001 would miss some values by a bit
        for unit, length in _UNITS.items():
            if text.endswith(unit):
                number = read_number(text.removesuffix(unit))
                return None if number is None else number * length
    return read_number(value)


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A float from ``low`` to ``high`` inclusive."""

    low: float
    high: float
    unit: str = ""

    @override
    def read(self, value: object) -> float:
        number = read_number(value)
        if number is None:
            raise ValueError(f"not a number; write {self._range()}")
        if not self.low <= number <= self.high:
            raise ValueError(f"out of range; write {self._range()}")
        return number

    @override
    def describe(self) -> str:
        return f"number{self.unit and ' of ' + self.unit}, {self._range()}"

    @override
    def show(self, value: float) -> str:
        return show_number(value)

    def _range(self) -> str:
        return f"{show_number(self.low)} to {show_number(self.high)}"


@dataclass(frozen=True, slots=True)
class Integer(Kind):
    """An int from ``low`` to ``high`` inclusive."""

    low: int
    high: int
    unit: str = ""

    @override
    def read(self, value: object) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"not a whole number; write {self.low} to {self.high}")  # noqa: TRY004 - pydantic collects ValueError alone
        if not self.low <= value <= self.high:
            raise ValueError(f"out of range; write {self.low} to {self.high}")
        return value

    @override
    def describe(self) -> str:
        return f"whole number{self.unit and ' of ' + self.unit}, {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """A bool, in any of YAML's spellings."""

    @override
    def read(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        text = value.strip().lower() if isinstance(value, str) else None
        if text in {"true", "yes", "on", "1"}:
            return True
        if text in {"false", "no", "off", "0"}:
            return False
        raise ValueError("neither true nor false; write the one or the other")

    @override
    def describe(self) -> str:
        return "true or false"

    @override
    def show(self, value: bool) -> str:
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few words, which are also the members of the ``Literal`` beside it; case does not matter."""

    words: tuple[str, ...]

    @override
    def read(self, value: object) -> str:
        word = value.strip().lower() if isinstance(value, str) else None
        if word not in self.words:
            raise ValueError(f"not a choice; write {self.describe()}")
        return word

    @override
    def describe(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"


@dataclass(frozen=True, slots=True)
class Edges(Kind):
    """Upper edges of buckets: at most ``most`` numbers from 0 up, strictly increasing; a tuple of floats."""

    most: int

    @override
    def read(self, value: object) -> tuple[float, ...]:
        edges = [read_number(part) for part in self._parts(value)]
        if not edges or None in edges:
            raise ValueError("not a list of numbers; write them as [0, 0.5, 1] or as 0, 0.5, 1")
        found = tuple(edge for edge in edges if edge is not None)
        if len(found) > self.most:
            raise ValueError(f"{len(found)} edges; write at most {self.most}")
        if found[0] < 0 or math.isinf(found[-1]):
            raise ValueError("an edge is out of range; write numbers from 0 up")
        if any(later <= earlier for earlier, later in pairwise(found)):
            raise ValueError("not strictly increasing; write each edge once, the lowest first")
        return found

    @override
    def describe(self) -> str:
        return f"list of 1 to {self.most} numbers from 0 up, strictly increasing"

    @override
    def show(self, value: tuple[float, ...]) -> str:
        return f"[{', '.join(show_number(edge) for edge in value)}]"

    @staticmethod
    def _parts(value: object) -> list[object]:
        if isinstance(value, str):
            return list(value.strip().removeprefix("[").removesuffix("]").split(","))
        return list(value) if isinstance(value, list | tuple) else []


@dataclass(frozen=True, slots=True)
class Structure(Kind):
    """A list or mapping: YAML's own, or JSON in an environment variable; pydantic reads what is inside."""

    shape: str

    @override
    def read(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"not JSON; write {self.shape}") from None

    @override
    def describe(self) -> str:
        return f"{self.shape} (JSON in the environment)"

    @override
    def show(self, value: Any) -> str:
        return json.dumps(value)

    @override
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))
