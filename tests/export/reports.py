"""Report trees built by hand, as analysis would build them."""

from dataclasses import replace
from itertools import starmap

from sidecar.analysis.checklist.checklist import checklist
from sidecar.analysis.distributions import ACCEPTANCE_EDGES, USAGE_EDGES, WINDOW_EDGES, Distribution
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.engine.latency import QUANTILES, Latency, Range, Source
from sidecar.analysis.engine.scrape_report import ScrapeReport
from sidecar.analysis.evidence import NO_DRAFTS, Acceptance, Evidence
from sidecar.analysis.history import MINUTE, MINUTES, History
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.report import EngineReport, ModelReport, OwnReport, Report, TemperatureReport
from sidecar.analysis.speed.speedup import EngineSpeed, LoadReport, Speedup
from sidecar.analysis.speed.steps import Steps
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.plugin_state import (
    NoSplit,
    NoSplitReason,
    PluginEngineReport,
    PluginReport,
    PluginState,
)
from sidecar.analysis.split.strata import Difference
from sidecar.analysis.split.tallies import GroupReport
from sidecar.analysis.temperature_state import DURATION_EDGES, LENGTH_EDGES, TPOT_EDGES, TTFT_EDGES
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.export.declaration import ReportView
from sidecar.findings.lower_acceptance import LowerAcceptance
from sidecar.requests.messages import Configuration, Speculation
from sidecar.requests.tally import Tally
from sidecar.settings import load_settings

NOW = 1_700_000_003.5
EAGLE = Speculation("eagle3", 3, rejection_sample_method="standard")


def settings(**environment):
    return load_settings(None, {f"SPECDEC_{name}": value for name, value in environment.items()})


def shown(report_, **environment):
    return ReportView(report_, settings(**environment))


def with_hour(report_):
    """The page's data with an hour in which the report said the same, each minute."""
    history = History()
    for minute in range(MINUTES):
        history.take(replace(report_, at=report_.at + MINUTE * minute))
    return replace(shown(report_), history=history)


def distribution(edges, *counts):
    """With the cumulative ``counts``, of which the last ones repeat."""
    filled = (
        (counts + counts[-1:] * len(edges))[: len(edges) + 1] if counts else (0,) * (len(edges) + 1)
    )
    return Distribution(edges, filled, 0.5 * filled[-1])


def window(rate, drafts=1000.0, share=1.0, tokens=3):
    drafted = drafts * tokens
    return Acceptance(
        seconds=300.0,
        requests=40.0,
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=rate * drafted,
        accepted_per_position=tuple(
            rate * drafts * (1 + (tokens - 1 - 2 * place) / 16) for place in range(tokens)
        ),
        drafted_per_position=(drafts,) * tokens,
        share=share,
    )


def judgement(verdict, rate=None, *, share=1.0, speculation=None, by_speedup=False, **changes):
    """On a window that accepts ``rate`` of its draft tokens; None: nothing was drafted."""
    seen = NO_DRAFTS if rate is None else window(rate, share=share)
    enough = verdict is not Verdict.INSUFFICIENT_DATA
    verdicts = {"by_acceptance": verdict, "by_speedup": verdict if by_speedup else None}
    is_low = enough and seen.rate is not None and seen.rate < 0.5
    judged = {
        "evidence": Evidence(window=seen, speculation=speculation),
        "judged": seen if enough else None,
    }
    return Judgement(is_known=True, **{**judged, **verdicts, "is_low": is_low} | changes)


def speedup(plain_ms, actual_ms, error=0.01):
    times = {"plain_seconds": plain_ms / 1000, "actual_seconds": actual_ms / 1000}
    return Speedup(ratio=plain_ms / actual_ms, error=error, tokens=1000.0, **times)


def speed(plain_ms=30.0, actual_ms=20.0, withheld=None):
    """An engine's or a model's, with 9.2 requests running."""
    times = {"seconds": 92.0, "decode_steps": 920.0, "engine_steps": 110.0}
    steps = Steps(
        **times,
        tokens=1800.0,
        first_tokens=92.0,
        drafts=900.0,
        draft_tokens=2700.0,
        engine_seconds=11.0,
    )
    if withheld is not None:
        return EngineSpeed(steps=steps, withheld=withheld)
    known = speedup(plain_ms, actual_ms)
    return EngineSpeed(
        steps=steps, speedup=known, break_even_length=1.6, break_even_acceptance=0.31
    )


def engine(model="demo", index="0", **changes):
    counters = {counter: 100.0 + place for place, counter in enumerate(Counter)}
    values = {
        "key": EngineKey(model, index),
        "counters": counters | {Counter.DRAFT_TOKENS: 900.0, Counter.ACCEPTED_TOKENS: 540.0},
        "accepted_per_position": (270.0, 180.0, 90.0),
        "kv_cache_usages": distribution(USAGE_EDGES, 1, 2, 3),
        "window_acceptances": distribution(WINDOW_EDGES, 0, 0, 0, 1, 2),
        "loads": (
            LoadReport("1", 10.0, 400.0, 900.0, 0.03),
            LoadReport("2"),
            LoadReport("3-4", 4.0, 100.0, 250.0),
        ),
        "judgement": judgement(Verdict.NET_POSITIVE, 0.6),
        "gauges": {
            Gauge.REQUESTS_RUNNING: 4.0,
            Gauge.REQUESTS_WAITING: 1.0,
            Gauge.KV_CACHE_USAGE: 0.375,
        },
        "kv_cache_peak": 0.5,
        "kv_cache_capacity_tokens": 442_368,
        "kv_cache_block_tokens": 16,
        "cache": CacheWindow(40, 120_000, 4000, 120_000, 90_000, 0),
        "latencies": {phase: latency(0.02) for phase in Phase},
        "acceptance": window(0.6),
        "limitations": frozenset(),
        "speed": speed(withheld=Withheld.NO_REFERENCE),
        "speculation": EAGLE,
        "configuration": Configuration(),
        "difference": None,
        "undrafted_tokens": 0.0,
        "coverage": 1.0,
        "report_age": 0.5,
    }
    return EngineReport(**values | changes)


STRUCTURED = LowerAcceptance(
    code="structured_output",
    group="structured",
    rate=0.45,
    others=0.7,
    error=0.02,
    loses=True,
    break_even=0.5,
)


def latency(median):
    """By the requests' own times."""
    seconds = (median, 2 * median, 3 * median, 5 * median)
    quantiles = dict(zip(QUANTILES, seconds, strict=True))
    ranges = {quantile: Range(value, value) for quantile, value in quantiles.items()}
    return Latency(quantiles, 40.0, ranges, source=Source.REQUESTS)


def by_bucket(*edges):
    """By vLLM's buckets, whose ``edges`` are a pair for each quantile."""
    ranges = dict(zip(QUANTILES, starmap(Range, edges), strict=True))
    return Latency(
        {quantile: (known.least + min(known.most, 99.0)) / 2 for quantile, known in ranges.items()},
        40.0,
        ranges,
    )


def tally(stopped, drafts, rate):
    return Tally(
        stopped=stopped,
        drafts=drafts,
        draft_tokens=3 * drafts,
        accepted_tokens=int(3 * drafts * rate),
    )


def temperature(label, verdict=Verdict.NET_POSITIVE, rate=0.7, share=0.5, **changes):
    distributions = {
        "acceptances": distribution(ACCEPTANCE_EDGES, 0, 1, 2, 5, 40),
        "lengths": distribution(LENGTH_EDGES, 0, 10, 40),
        "ttft": distribution(TTFT_EDGES, 0, 40),
        "tpot": distribution(TPOT_EDGES, 40),
        "durations": distribution(DURATION_EDGES, 0, 0, 40),
        "acceptance_bins": (0, 0, 1, 2, 4, 9, 14, 8, 2, 0),
        "acceptance_quantiles": {0.1: max(0.0, rate - 0.2), 0.5: rate, 0.9: rate + 0.1},
        "ttft_quantiles": {0.5: 0.08, 0.95: 0.2, 0.99: 0.3},
        "tpot_quantiles": {0.5: 0.02, 0.95: 0.03, 0.99: 0.04},
    }
    counted = replace(
        tally(40, 1000, rate), drafted_at=(1000, 1000, 1000), accepted_at=(900, 700, 500)
    )
    judged = {
        "window": window(rate, share=share),
        "judgement": judgement(verdict, rate, share=share),
    }
    untimed = {"speedup": None, "saved_seconds": 0.0, "lost_seconds": 0.0}
    known = {
        "temperature": label,
        "tally": counted,
        "endings": {"normal": 37, "loop": 2, "empty": 1},
    }
    values = known | distributions | judged | untimed
    return TemperatureReport(**values | changes)


def timed(label, verdict, rate, plain_ms, actual_ms, **changes):
    """A temperature whose verdict is by time."""
    judged = judgement(verdict, rate, share=0.5, by_speedup=True)
    return temperature(
        label, verdict, rate, judgement=judged, speedup=speedup(plain_ms, actual_ms), **changes
    )


def difference(rate, others, error=0.01, share=1 / 3):
    """Of the acceptance rate from that of the others."""
    return Difference(rate, others, error, share)


def group(by, name, rate=0.6, *, share=0.5, difference=None, without_drafts=False):
    return GroupReport(
        by=by,
        group=name,
        tally=tally(20, 500, rate),
        window=window(rate, share=share),
        difference=difference,
        without_drafts=without_drafts,
    )


def model(*temperatures, name="demo", engines=None, **changes):
    values = {
        "model_name": name,
        "engines": (engine(name),) if engines is None else engines,
        "temperatures": temperatures,
        "groups": (),
        "judgement": judgement(Verdict.NET_POSITIVE, 0.7),
        "speed": speed(withheld=Withheld.NO_REFERENCE),
        "loads": (),
        "acceptance_p10": 0.5,
        "no_split": None if temperatures else NoSplit(NoSplitReason.NOT_CONNECTED),
        "advice": None,
    }
    return ModelReport(**values | changes)


def plain_model(traffic=None, load=None, **changes):
    """A model that vLLM serves without speculation; by default no plug-in tells its requests."""
    loads = () if load is None else (load,)
    pods = (engine(limitations=frozenset({Limitation.NO_SPECULATION}), speculation=None),)
    values = {
        "engines": pods,
        "speed": None,
        "judgement": judgement(Verdict.INSUFFICIENT_DATA),
        "checklist": checklist(traffic, loads, 20),
    }
    return model(**values | changes)


def timed_model(*temperatures, **changes):
    """A model with a reference."""
    low, high = LoadReport("5-8", 2.0, 60.0, 100.0, 0.03), LoadReport("9-16", 3.0, 60.0, 100.0)
    loads = (LoadReport("1", plain_tpot_seconds=0.02), low, high)
    judged = judgement(Verdict.NET_POSITIVE, 0.5, by_speedup=True)
    return model(*temperatures, **{"speed": speed(), "loads": loads, "judgement": judged} | changes)


OBSERVING = PluginReport(
    state=PluginState.OBSERVING,
    unreadable_format=None,
    problem="",
    observed=1,
    expected=1,
    heard=True,
    engines=(
        PluginEngineReport(
            model_name="demo", engine="0", version="0.1.0", vllm_version="0.32.0",
            state=PluginState.OBSERVING, reason="",
        ),
    ),
    events=40,
    dropped={"unreadable": 0, "stranger": 0},
)  # fmt: skip

NEVER_CONNECTED = replace(
    OBSERVING, state=PluginState.NOT_CONNECTED, heard=False, observed=0, engines=()
)

UP = ScrapeReport(
    up=True,
    last_scrape=NOW - 0.5,
    duration=0.0078125,
    interval=1.0,
    errors={"timeout": 1, "unreachable": 0},
    last_error=None,
    malformed_lines=0,
    vllm_restarts=1,
)


def report(*models, plugin=OBSERVING, scrape=UP, **own):
    return Report(at=NOW, scrape=scrape, plugin=plugin, models=models, own=OwnReport(**own))


def down(error):
    return replace(UP, up=False, last_error=error)
