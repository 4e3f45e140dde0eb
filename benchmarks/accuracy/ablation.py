"""What each mechanism of the attribution contributes: the errors without it, and with each constant changed."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from benchmarks.accuracy.score import VIEWS, Score, recordings, replayed
from sidecar.analysis.attribution.windows import Window

_PACKAGE = "sidecar.analysis.attribution."
_INFINITE = 1e9


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _share_of_time(window: Window, at: float) -> float:
    return min(max((at - window.start) / window.seconds, 0.0), 1.0)


def _one_server(options: Any, **changes: Any) -> Any:
    return replace(options, **(changes | {"several_api_servers": False}))


# The parts of the package to replace, by the mechanism that this switches off.
ABLATIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "exact step count of streams": {"estimate.ObservedRequest.events": None},
    "check for merged events": {"estimate._MERGED": _INFINITE},
    "admission": {"engine_learner.EngineLearner.limit": None},
    "withholding of ambiguous admissions": {"estimate._MOST_AMBIGUITY": _INFINITE},
    "shared clock": {"attributors.replace": _one_server},
    "idle time": {"windows.Window.share_before": _share_of_time},
    "truncated tokens": {"estimate.truncated_tokens": _returning(0.0)},
    "calibration of the prefill": {
        "engine_learner.EngineLearner._prefill_by_sums": _returning(None),
        "engine_learner._ENOUGH_PREFILLS": _INFINITE,
    },
    "prefill from sums": {"engine_learner.EngineLearner._prefill_by_sums": _returning(None)},
    "draft length of the request's own time": {"estimate._ENOUGH_DRAFTS": _INFINITE},
    "withholding of short requests": {"estimate._MOST_BIAS": _INFINITE},
    "rates of long requests only": {"estimate._MOST_ERROR": _INFINITE},
    "shares fitted by bucket": {"drafting._SPREAD": 1e-3},
    "common prior of the shares": {"drafting._SPREAD": 100.0},
    "joined windows": {"drafting._OBSERVATION": 0.0},
    "unseen traffic in the fit": {"drafting._UNSEEN": _INFINITE},
}

# Each is halved and doubled.
CONSTANTS = (
    "admission._SIMULTANEOUS",
    "drafting._ENOUGH_OBSERVATIONS",
    "drafting._OBSERVATION",
    "drafting._SPREAD",
    "drafting._UNSEEN",
    "engine_learner._PRIOR_WEIGHT",
    "engine_learner._QUEUED",
    "engine_learner._MOST_RESIDUAL",
    "estimate._ENOUGH_DRAFTS",
    "estimate._FIRST_EVENT_ERROR",
    "estimate._FIRST_EVENT_LAG",
    "estimate._MERGED",
    "estimate._MOST_AMBIGUITY",
    "estimate._MOST_BIAS",
    "estimate._MOST_ERROR",
    "estimate._UNEVENNESS",
)


@contextmanager
def without(changes: Mapping[str, Any]) -> Iterator[None]:
    """Replaces parts of the package for a while."""
    with ExitStack() as stack:
        for name, value in changes.items():
            stack.enter_context(patch(_PACKAGE + name, value))
        yield


def results(*, hold_out: bool) -> dict[str, list[Score]]:
    """The scores of all views of a set of recordings, by the way they draft."""
    found: dict[str, list[Score]] = {"draft model": [], "n-gram": []}
    for folder in recordings(hold_out=hold_out):
        kind = "n-gram" if folder.name.startswith("ngram") else "draft model"
        found[kind] += [replayed(folder, view) for view in VIEWS]
    return found


def row(name: str, *, hold_out: bool) -> str:
    """A row: for each way of drafting the worst and mean bucket, median, P90, buckets with numbers, coverage."""
    cells = []
    for scores in results(hold_out=hold_out).values():
        worst = [one.worst for one in scores]
        cells += [_shown(max((value for value in worst if not math.isnan(value)), default=math.nan)), _mean(worst)]
        cells += [_mean([one.median for one in scores]), _mean([one.p90 for one in scores])]
        cells += [_mean([one.with_rate for one in scores]), _mean([one.coverage for one in scores])]
    return f"| {name} | {' | '.join(cells)} |"


def header(first: str) -> str:
    """The table's head."""
    columns = ("worst bucket", "mean of worst", "median", "P90", "buckets with numbers", "coverage")
    names = [f"{kind}: {column}" for kind in ("draft model", "n-gram") for column in columns]
    return f"| {first} | {' | '.join(names)} |\n|---{'|---' * len(names)}|"


def ablations(*, hold_out: bool) -> Iterator[str]:
    """The ablation table, row by row."""
    yield header("without")
    for name, changes in ABLATIONS.items():
        with without(changes):
            yield row(name, hold_out=hold_out)


def sensitivities(*, hold_out: bool) -> Iterator[str]:
    """The same for each constant halved and doubled."""
    yield header("constant")
    for name in CONSTANTS:
        for factor in (0.5, 2):
            changes = {name: _value(name) * factor}
            with without(changes):
                yield row(f"`{name}` x {factor:g}", hold_out=hold_out)


def _value(name: str) -> float:
    module, constant = name.split(".")
    found = getattr(__import__(_PACKAGE + module, fromlist=[constant]), constant)
    return float(found)


def _mean(values: list[float]) -> str:
    return _shown(statistics.fmean([value for value in values if not math.isnan(value)] or [math.nan]))


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
