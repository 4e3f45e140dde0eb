"""How long the proxy waits for a client that sends or reads too slowly."""

from sidecar.requests.proxy.options import ProxyOptions

NEVER = float("inf")


class SendPatience:
    """How long a client has read nothing of the bytes waiting for it."""

    __slots__ = ("_progress", "_since")

    def __init__(self) -> None:
        self._progress: tuple[int, ...] | None = None  # at the last check
        self._since = 0.0

    def begin(self) -> None:
        """Too many bytes are unsent: the time counts from the next check on."""
        self._progress = None

    def seconds(self, progress: tuple[int, ...], now: float) -> float:
        """To be called regularly while bytes wait; ``progress`` changes when any of them are sent."""
        if progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since


class BodyPatience:
    """When a client must have sent more of its request's body: soon, and at a minimum rate in the long run."""

    __slots__ = ("_options", "_received", "_since")

    def __init__(self, options: ProxyOptions) -> None:
        self._options = options
        self._since: float | None = None  # from when on it has been the client's turn
        self._received = 0  # bytes by then

    def deadline(self, received: int, now: float, *, waiting: bool) -> float:
        """``received``: bytes of the body so far. ``waiting``: it is the client's turn."""
        if not waiting:
            self._since = None
            return NEVER
        if self._since is None:
            self._since, self._received = now, received
        earned = (received - self._received) / self._options.min_body_rate
        return min(now, self._since + earned) + self._options.body_idle_seconds
