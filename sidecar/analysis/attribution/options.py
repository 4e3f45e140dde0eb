"""What can be set about attribution."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionOptions:
    """Times in seconds. The number of requests kept is bounded by ``most_requests``, in flight and pending each.

    ``lateness``: how long after its end a record may arrive and still count among those in flight. ``patience``: how
    long a window waits for requests in flight to end. ``hold``: how long a request waits for a fit that can tell: at
    once a standard error of its bucket's acceptance rate of ``good_error`` will do, at last one of ``worst_error``;
    then it gets no numbers. ``memory``: how fast sums fade. ``history``: how long a request may last. ``infer_all``:
    do as if no reply carried vLLM's own numbers. ``several_api_servers``: each counts the steps that it hears of, so
    their sum is no step count.
    """

    lateness: float = 0.0
    patience: float = 60.0
    hold: float = 300.0
    memory: float = 600.0
    history: float = 1800.0
    most_requests: int = 20_000
    good_error: float = 0.02
    worst_error: float = 0.045
    learn_every: float = 5.0
    infer_all: bool = False
    several_api_servers: bool = False
