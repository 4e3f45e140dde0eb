"""What is counted of finished requests over the sliding window."""

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.requests.messages import FinishedRequest


@dataclass(frozen=True, slots=True, eq=False)
class RequestCount:
    """A number of the requests that finished in the window; ``of`` is what each adds to it."""

    of: Callable[[FinishedRequest], int]
