"""How small a request's chunks may be: each costs as much as a large one."""

from typing import Final

_FREE: Final = 1000  # of a body; from there on, their mean size counts
_MIN_MEAN: Final = 64  # bytes


def is_too_fine(chunks: int, size: int) -> bool:
    """Whether a body whose first ``size`` bytes came in that many chunks is refused."""
    return chunks > _FREE and size < chunks * _MIN_MEAN
