"""What a reader pastes: the whole --speculative-config with one change, and the command to verify.

Both are for this engine and this traffic.
"""

import json
import re
from collections.abc import Sequence
from math import ceil
from typing import Any, Final

from sidecar.analysis.report import ModelReport
from sidecar.engine.names import Phase
from sidecar.requests.messages import Speculation

_ROUNDS: Final = 8  # fewer than four do not show how much two runs differ
_REQUESTS: Final = 32  # per level and round
_MAX_TOKENS: Final = 128  # per request, as ``sweep`` sends them unless told otherwise
_MOST_TEMPERATURES: Final = 3
_MOST_AT_ONCE: Final = 64
_PODS: Final = 2
_MARGIN: Final = 1.5  # of the duration: pods pause, and the tail ends later than the median
_LEAST_MINUTES: Final = 10
_UNKNOWN_MINUTES: Final = 180
_ROLLOUTS: Final = (
    "To try it on one pod with your own traffic, use Argo Rollouts with deploy/rollouts/."
)
AFTER_A_RESTART: Final = (
    "`specdec-sidecar report` five minutes after the restart: the finding is gone."
)
_EDGE: Final = re.compile(r"[0-9.]+$")  # the upper edge of a bucket of temperatures


def changed_config(speculation: Speculation, **changes: Any) -> str:
    """The engine's --speculative-config with ``changes`` made; one that is None is removed.

    Empty if the plug-in does not report the options.
    """
    if speculation.options is None:
        return ""
    options = {**json.loads(speculation.options), **changes}
    return json.dumps({name: value for name, value in options.items() if value is not None})


def given_option(speculation: Speculation, name: str) -> Any:
    """An option of the engine's --speculative-config; None if it is not known to be set."""
    return json.loads(speculation.options or "{}").get(name)


def verification(model: ModelReport, temperatures: Sequence[str] = (), *, body: str = "") -> str:
    """The command that compares a changed pod with an unchanged one, with an end for its pace.

    ``temperatures`` are labels, those with traffic unless given; ``body`` is an example of the
    parameters that requests of the group send.
    """
    labels = list(temperatures) or [
        part.temperature for part in model.temperatures if part.window.requests
    ]
    asked = _asked(labels) or ["0", "1"]
    at_once = _at_once(model)
    minutes = _minutes(model, len(asked), at_once)
    extra = f" --extra-body '{body}'" if body else ""

    return (
        "`specdec-sidecar sweep --url http://CHANGED:8000 --against http://UNCHANGED:8000"
        f" --prompts prompts.jsonl --temperatures {','.join(asked)} --concurrency {at_once}"
        f" --rounds {_ROUNDS} --duration {minutes}m{extra}` on two pods without other traffic."
        f" {_ROLLOUTS}"
    )


def _asked(labels: Sequence[str]) -> list[str]:
    """A temperature of each bucket: its upper edge, or above the last edge a little more."""
    asked = []
    for label in labels:
        if label.endswith("+"):
            asked.append(f"{float(label[:-1]) + 0.2:g}")
            continue

        edge = _EDGE.search(label)
        if edge is not None:
            asked.append(edge.group())
    return asked[-_MOST_TEMPERATURES:]


def _at_once(model: ModelReport) -> int:
    """Requests in flight, as many as run now."""
    steps = model.speed.steps if model.speed is not None else None
    running = round(steps.running) if steps is not None else 1
    return min(max(running, 1), _MOST_AT_ONCE)


def _minutes(model: ModelReport, levels: int, at_once: int) -> int:
    """How long the sweep may take, from the median times of the engines."""
    medians = [
        (engine.latencies[Phase.TTFT].quantiles[0.5], engine.latencies[Phase.TPOT].quantiles[0.5])
        for engine in model.engines
        if Phase.TTFT in engine.latencies and Phase.TPOT in engine.latencies
    ]
    if not medians:
        return _UNKNOWN_MINUTES

    first, each = max(medians, key=sum)
    seconds_per_request = first + _MAX_TOKENS * each
    batches = ceil(_REQUESTS / at_once)
    seconds = _PODS * _ROUNDS * levels * batches * seconds_per_request
    return max(ceil(_MARGIN * seconds / 60), _LEAST_MINUTES)
