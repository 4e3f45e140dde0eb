"""The KV cache: how many blocks are in use, and which prompt blocks can be reused."""

from collections.abc import Iterable, Sequence


class BlockPool:
    """Counts blocks as vLLM does: a cached block that no request holds is free, and may be evicted.

    Full prompt blocks are known by a hash of all tokens up to their end, so requests with a common prefix
    share them; all other blocks are private to one request and only counted.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._held: dict[int, int] = {}  # hash of a shared block -> requests that hold it
        self._idle: dict[int, None] = {}  # cached and not held, least recently used first
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that at least one request holds (0 to ``total``)."""
        return len(self._held) + self._private

    @property
    def usage(self) -> float:
        """Used / total blocks, 0-1."""
        return self.used / self.total

    def cached(self, hashes: Sequence[int]) -> int:
        """The number of a prompt's leading full blocks that are cached."""
        for count, block in enumerate(hashes):
            if block not in self._held and block not in self._idle:
                return count
        return len(hashes)

    def acquire(self, hashes: Sequence[int], private: int) -> bool:
        """Takes shared blocks and ``private`` others; takes none and returns False if they do not fit."""
        added = sum(block not in self._held for block in hashes) + private
        if self.used + added > self.total:
            return False
        for block in hashes:
            self._idle.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        self._private += private
        while self.used + len(self._idle) > self.total:
            del self._idle[next(iter(self._idle))]
        return True

    def release(self, hashes: Sequence[int], private: int) -> None:
        """Returns what ``acquire`` took; shared blocks stay cached until their space is needed."""
        self._private -= private
        for block in reversed(hashes):  # the end of a prefix is evicted before its beginning
            if self._held[block] > 1:
                self._held[block] -= 1
            else:
                del self._held[block]
                self._idle[block] = None


def block_hashes(tokens: Iterable[object], block_size: int) -> tuple[int, ...]:
    """One hash for each full block; it covers the block and everything before it."""
    hashes: list[int] = []
    block: list[object] = []
    previous = 0
    for token in tokens:
        block.append(token)
        if len(block) == block_size:
            previous = hash((previous, *block))
            hashes.append(previous)
            block.clear()
    return tuple(hashes)
