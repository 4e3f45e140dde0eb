"""Attribution's options."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionOptions:
    """Times in seconds. At most ``most_requests`` in flight are kept, and as many that wait for numbers.

    ``lateness``: how long after its end a record may arrive. ``patience``: how long a window waits for requests in
    flight to end before its sums are final. ``memory``: time constant by which sums fade. ``history``: longest duration
    of a request. ``hold``: how long a request waits for the fit of its bucket. At first the standard error of the
    bucket's acceptance rate must be within ``good_error``, at the end within ``worst_error``, or the request gets no
    numbers. ``infer_all`` ignores vLLM's own per-request numbers. With ``several_api_servers`` each counts the steps
    in which its own requests took part, so their sum is no step count.
    """

    lateness: float = 0.0
    patience: float = 60.0
    hold: float = 300.0
    memory: float = 600.0
    history: float = 1800.0
    most_requests: int = 20_000
    good_error: float = 0.02
    worst_error: float = 0.03
    learn_every: float = 5.0
    infer_all: bool = False
    several_api_servers: bool = False
