"""A body, read once it is complete."""


class Body:
    """Collects the pieces of a body of at most ``max_bytes``; a larger one is discarded."""

    __slots__ = ("_max_bytes", "content", "too_large")

    def __init__(self, max_bytes: int) -> None:
        self.content = bytearray()
        self.too_large = False
        self._max_bytes = max_bytes

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        if self.too_large:
            return
        self.content += piece
        if len(self.content) > self._max_bytes:
            self.too_large = True
            self.content = bytearray()
