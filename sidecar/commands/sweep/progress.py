"""A sweep's progress: a bar on a terminal, otherwise a line per level."""

import time
from typing import Final, TextIO

_WIDTH: Final = 30


class Progress:
    """Called after each request with what is being measured."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._begun = time.monotonic()
        self._ended = 0
        self._said = ""

    def __call__(self, what: str) -> None:
        """Counts the request and shows the progress."""
        if not self._is_terminal and what != self._said:
            self._said = what
            self._stream.write(f"{self._ended}/{self._total} requests done; measuring {what}\n")
            self._stream.flush()
        self._ended += 1
        if self._is_terminal:
            self._bar(what, self._ended)

    def _bar(self, what: str, ended: int) -> None:
        full = min(_WIDTH * ended // self._total, _WIDTH)
        left = (time.monotonic() - self._begun) / ended * max(self._total - ended, 0)
        bar = "#" * full + "-" * (_WIDTH - full)
        self._stream.write(f"\r\x1b[K[{bar}] {ended}/{self._total}, about {left:.0f} s left: {what}")
        self._stream.flush()

    def clear(self) -> None:
        """Removes the bar."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
