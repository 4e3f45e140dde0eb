"""Bodies as they pass by: references to their pieces, looked at together and no more often than needed."""

from typing import Final

PIECE_BYTES: Final = 64
"""What a piece counts for besides its length, so that many empty ones are bounded too."""


class Gatherer:
    """Takes pieces of a body.

    ``feed`` does it all. Where even that call is too dear, do what it does: append to ``pieces``, add up the lengths
    and ``PIECE_BYTES`` each, and past ``limit`` call ``settle``; both ``limit`` and the sum may change in that call.
    """

    __slots__ = ("_gathered", "limit", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.limit = 0
        self._gathered = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.pieces.append(piece)
        self._gathered += len(piece) + PIECE_BYTES
        if self._gathered > self.limit:
            self._gathered = self.settle(self._gathered)

    def settle(self, gathered: int) -> int:
        """Look at the pieces, which add up to ``gathered``; what those add up to that stay."""
        raise NotImplementedError


class Discarded(Gatherer):
    """A body that nobody reads."""

    __slots__ = ()

    def settle(self, gathered: int) -> int:  # noqa: ARG002 - nothing stays
        """Let go of the pieces."""
        self.pieces.clear()
        return 0


class Body(Gatherer):
    """A body to be read when it is whole: of at most ``max_bytes``, in which every piece but one costs 64 more."""

    __slots__ = ("too_large",)

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.limit = max_bytes + PIECE_BYTES
        self.too_large = False

    def settle(self, gathered: int) -> int:  # noqa: ARG002 - whatever it is, it is too much
        """Let go of a body that is too large."""
        self.too_large = True
        self.limit = 0
        self.pieces.clear()
        return 0

    def take(self) -> bytes:
        """The body, which is then let go."""
        pieces = self.pieces[:]
        self.pieces.clear()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
