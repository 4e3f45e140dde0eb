"""How small a request's chunks may be: a small chunk costs as much as a large one."""

from typing import Final

_FREE: Final = 1000  # chunks of a body; past these, their mean size counts
_MIN_MEAN: Final = 64  # bytes


def is_too_fine(chunks: int, size: int) -> bool:
    """Whether to refuse a body whose first ``size`` bytes came in that many chunks."""
    return chunks > _FREE and size < chunks * _MIN_MEAN
