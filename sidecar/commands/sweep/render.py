"""A sweep as text; times in milliseconds."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from sidecar.commands.estimates import Interval
from sidecar.commands.sweep.measured import SweepResult
from sidecar.commands.sweep.metrics import METRICS, Cells, cells, table
from sidecar.commands.sweep.summary import LevelSummary

_ACCEPTANCE: Final = tuple(METRICS)[tuple(METRICS).index("draft tokens") :]
_TIMES: Final = tuple(name for name in METRICS if name not in _ACCEPTANCE)


def text(result: SweepResult, levels: Sequence[LevelSummary]) -> Iterator[str]:
    """A table of times, one of acceptance, the verdicts and the caveats."""
    compared = any(level.baseline is not None for level in levels)
    yield f"model {result.model or 'unknown'}; times in milliseconds"
    yield ""
    yield from table([(one.level, list(_times(one))) for one in levels], ("server", *_TIMES) if compared else _TIMES)
    yield ""
    columns = (*_ACCEPTANCE, "source", *(("speedup",) if compared else ()), "verdict")
    yield from table([(one.level, list(_acceptance(one))) for one in levels], columns)
    yield ""
    yield from _actions(levels)
    for level in levels:
        for temperature, change in level.changes.items():
            if change is not None:
                alone = f"compared with temperature {temperature:g} alone"
                yield f"{level.level}: TPOT P99 at temperature {temperature:g} {_change(change)} {alone}"
    yield from _caveats(result, levels)


def _times(level: LevelSummary) -> Iterator[Cells]:
    """The server's row, those of a mix's temperatures, and the baseline's."""
    yield {**cells(level.speculating), "server": "speculating"}
    yield from _in_mix(level)
    if level.baseline is not None:
        yield {**cells(level.baseline), "server": "baseline"}


def _acceptance(level: LevelSummary) -> Iterator[Cells]:
    """The server's row, and those of a mix's temperatures."""
    speedup = "-"
    if level.speedup is not None:
        error = level.speedup.error
        speedup = f"{level.speedup.value:.2f}x" + ("" if error is None else f"±{error:.2f}")
    judged = {"source": level.acceptance_from, "speedup": speedup, "verdict": level.verdict}
    yield {**cells(level.speculating), **judged}
    yield from _in_mix(level)


def _in_mix(level: LevelSummary) -> Iterator[Cells]:
    for temperature, inside in level.in_mix.items():
        yield {**cells(inside), "temperature": f"  {temperature:g}"}


def _actions(levels: Sequence[LevelSummary]) -> Iterator[str]:
    """What to do, each with the levels that it is for, and the advice on the number of tokens."""
    found = defaultdict(list)
    for level in levels:
        found[f"{level.verdict}: {level.action}"].append(str(level.level))
    for action, where in found.items():
        yield action
        yield f"  {'; '.join(where)}"
    yield from (f"{level.level}: {level.advice}" for level in levels if level.advice is not None)


def _change(change: Interval) -> str:
    error = "not precise: raise --requests, P99 needs about 800" if change.error is None else f"±{change.error:.1%}"
    return f"{change.value:+.1%} ({error})"


def _caveats(result: SweepResult, levels: Sequence[LevelSummary]) -> Iterator[str]:
    speedups = [one.speedup for one in levels if one.speedup is not None]
    if any(one.error is None or abs(one.value - 1) <= one.error for one in speedups):
        yield "Some speedups are smaller than their error: raise --requests or --rounds."
    for level in levels:
        if level.other_requests:
            yield f"{level.level}: vLLM also served other clients, so its counters and times include their requests"
    for server, fault in result.faults.items():
        yield f"{server}: requests failed; the last error: {fault}"
    if not result.complete:
        yield "The sweep is incomplete: it ended before all levels were measured."
