"""One line of ``plugin.jsonl``: a plug-in's message as it was received."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from sidecar.requests.messages import Hello, ReportPart, UnixSeconds


@dataclass(frozen=True, slots=True)
class Heard:
    """``at`` is when it was received. No message: the connection ended. Connection 0: the line only marks a time."""

    at: UnixSeconds
    connection: Annotated[int, Field(ge=0)] = 0
    hello: Hello | None = None
    report: ReportPart | None = None

    @property
    def message(self) -> Hello | ReportPart | None:
        """The message for a ``PluginSink``."""
        return self.hello or self.report


def encode(heard: Heard) -> bytes:
    """The line, without the line break."""
    return _adapter().dump_json(heard, exclude_defaults=True)


def decode(line: str) -> Heard:
    """Reads a line.

    Raises:
        ValueError: it is not such a line, or a field is out of range.
    """
    return _adapter().validate_json(line, strict=True)


@cache
def _adapter() -> TypeAdapter[Heard]:
    return TypeAdapter(Heard)
