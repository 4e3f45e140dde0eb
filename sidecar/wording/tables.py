"""A model's tables as rows of text: what ``report`` prints, and some of what the page shows."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from sidecar.analysis.engine.latency import Latency, Range
from sidecar.analysis.evidence import CONFIDENCE, Acceptance
from sidecar.analysis.judgement import Judgement
from sidecar.analysis.report import EngineReport, ModelReport, TemperatureReport
from sidecar.analysis.split.tallies import GroupReport
from sidecar.engine.names import Phase
from sidecar.findings.room import fitting
from sidecar.requests.keys import GROUPED
from sidecar.settings.baselines import PlainCache
from sidecar.wording.change import CHANGE, change_rows
from sidecar.wording.numbers import count, counted, milliseconds, percent, ratio, share
from sidecar.wording.speed import CONTEXTS, context_rows, plus_minus
from sidecar.wording.verdicts import verdict_words

LEGEND: Final = (
    "Acceptance rate: the share of the draft tokens, which speculation proposes, that the model"
    " accepts. T: the temperature at which requests sample; a range includes its upper end. Times"
    " are vLLM's own, from the arrival of a request: its client waits longer. A time per token is"
    " the mean over all tokens, with prefill; TPOT is a request's own, after its first token. A"
    " range of times has the quantile in it: without the plug-in, it is a bucket of vLLM's"
    " histogram; with it, what the few requests leave open whose times are not known yet. ± is the"
    " 95 % confidence interval; of a speedup, as that of the same traffic in the long run."
)
_TIMES: Final = ("TTFT P50", "P95", "P99", "TPOT P50", "P95", "P99")
TEMPERATURES: Final = (
    *("temperature", "verdict", "speedup", "acceptance", "P10", "P50", "P90"),
    *("of draft tokens", "requests", *_TIMES),
)
_NO_TIMES: Final = ("-",) * 3
_ENGINES: Final = ("engine", "speculation", "acceptance", "coverage", *_TIMES)
LOWER: Final = (
    "lower acceptance rate",
    "acceptance rate",
    "below the others by",
    "share of draft tokens",
)
PRICES: Final = ("price", "with speculation", "without (baseline)")
OTHER_PRICES: Final = (
    "The cost in time to first token, prefix-cache hits and throughput depends on the requests."
    " `specdec-sidecar sweep --against` compares it on the same ones."
)

Cells = Sequence[str]
TextTable = tuple[Cells, Sequence[Cells]]  # the header, and the rows


def tables(model: ModelReport) -> list[TextTable]:
    """The header and the rows of each table that has any."""
    all_tables: list[TextTable] = [
        (TEMPERATURES, temperature_rows(model)),
        (CHANGE, change_rows(model)),
        (LOWER, lower_rows(model)),
        (_ENGINES, [_engine(engine) for engine in model.engines]),
        (PRICES, price_rows(model)),
        (CONTEXTS, context_rows(model)),
    ]

    return [(header, rows) for header, rows in all_tables if rows]


def judged_window(judgement: Judgement) -> Acceptance:
    """The window that was judged or, below the gates, the recent one."""
    return judgement.judged or judgement.evidence.window


def temperature_rows(model: ModelReport) -> list[Cells]:
    """A row for each temperature with traffic; times are in milliseconds."""
    return [
        _temperature(part)
        for part in model.temperatures
        if part.window.requests or part.window.draft_tokens
    ]


def _temperature(part: TemperatureReport) -> Cells:
    times = (*part.ttft_quantiles.values(), *part.tpot_quantiles.values())

    return (
        part.temperature,
        verdict_words(part.judgement),
        plus_minus(part.speedup) if part.speedup else "-",
        ratio(judged_window(part.judgement).rate),
        *(ratio(rate) for rate in part.acceptance_quantiles.values()),
        share(part.window.share),
        count(part.window.requests),
        *(milliseconds(time) for time in times),
    )


def lower_rows(model: ModelReport) -> list[Cells]:
    """A row for each group that accepts clearly less than the model's other requests."""
    rows: list[Cells] = []
    for group in model.groups:
        difference = group.difference
        if difference is None or not group.accepts_less:
            continue

        points = -100 * difference.value
        interval = 100 * CONFIDENCE * difference.error
        below = f"{points:.0f} ± {interval:.0f} points"
        window = group.window
        rows.append((group_name(group), percent(window.rate), below, percent(window.share)))

    return rows


def group_name(group: GroupReport) -> str:
    """What the requests of a group have in common."""
    return GROUPED[group.by].name.format(group.group)


def _engine(engine: EngineReport) -> Cells:
    speculation = "-"
    if engine.speculation is not None:
        tokens = counted(engine.speculation.num_speculative_tokens, "token")
        speculation = f"{engine.speculation.method}, {tokens}"

    return (
        engine.key.engine,
        speculation,
        ratio(judged_window(engine.judgement).rate),
        ratio(engine.coverage),
        *_times(engine, Phase.TTFT),
        *_times(engine, Phase.TPOT),
    )


def _times(engine: EngineReport, phase: Phase) -> Sequence[str]:
    measured = engine.latencies.get(phase)
    return _NO_TIMES if measured is None else shown_quantiles(measured, milliseconds)


def shown_quantiles(measured: Latency, show: Callable[[float], str]) -> list[str]:
    """P50, P95 and P99, or the range of each that is not known more exactly."""
    return [shown_range(measured.ranges[quantile], show) for quantile in (0.5, 0.95, 0.99)]


def shown_range(known: Range, show: Callable[[float], str]) -> str:
    """Between what a value is, or the value where that is known."""
    if known.least == known.most:
        return show(known.least)
    if math.isinf(known.most):
        return f">{show(known.least)}"
    if not known.least:
        return f"<{show(known.most)}"

    least, most = show(known.least), show(known.most)
    if least == most:
        return least
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(f' {unit}') else least}-{most}"


def price_rows(model: ModelReport) -> list[Cells]:
    """The room that speculation takes; empty without a baseline.

    Whatever depends on the requests is left out, since the baseline had others.
    """
    plain = model.plain_cache or PlainCache()
    capacity = model.kv_cache_capacity_tokens
    if model.speed is None or plain.capacity_tokens is None or capacity is None:
        return []

    rows = [("KV cache of an engine, tokens", count(capacity), count(plain.capacity_tokens))]
    fits = fitting(model)
    if fits is not None:
        of_tokens = f"requests of {fits.tokens:,.0f} tokens that fit"
        rows.append((of_tokens, count(fits.requests), count(fits.plain)))
    return [*rows]
