"""Rendering at a limited rate, however often the result is requested."""

import time
from collections.abc import Callable
from typing import TypeVar

_Made = TypeVar("_Made")


def at_most_every(
    seconds: float, make: Callable[[], _Made], clock: Callable[[], float] = time.monotonic
) -> Callable[[], _Made]:
    """Calls ``make`` and reuses its result for ``seconds``."""
    kept: list[tuple[float, _Made]] = []

    def recent() -> _Made:
        now = clock()
        if not kept or now - kept[0][0] >= seconds:
            kept[:] = [(now, make())]
        return kept[0][1]

    return recent
