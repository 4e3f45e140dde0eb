"""One line of ``plugin.jsonl``: a message of a plug-in, as it was received."""

from dataclasses import dataclass
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter

from sidecar.requests.messages import FinishedRequest, Hello, PluginSink, Tick, UnixSeconds


@dataclass(frozen=True, slots=True)
class Heard:
    """``at`` is when it was received. A connection without a message has ended; 0 is none, and only says when."""

    at: UnixSeconds
    connection: Annotated[int, Field(ge=0)] = 0
    hello: Hello | None = None
    tick: Tick | None = None
    request: FinishedRequest | None = None

    def tell(self, sink: PluginSink) -> None:
        """Passes the message on as it was when it came."""
        if self.hello is not None:
            sink.hello(self.connection, self.hello)
        elif self.tick is not None:
            sink.tick(self.connection, self.tick)
        elif self.request is not None:
            sink.finished(self.connection, self.request)
        elif self.connection:
            sink.closed(self.connection)


def encode(heard: Heard) -> bytes:
    """The line, without its end."""
    return _adapter().dump_json(heard, exclude_defaults=True)


def decode(line: str) -> Heard:
    """Reads a line.

    Raises:
        ValueError: it is not one, or a field is not within its range.
    """
    return _adapter().validate_json(line, strict=True)


@cache
def _adapter() -> TypeAdapter[Heard]:
    return TypeAdapter(Heard)
