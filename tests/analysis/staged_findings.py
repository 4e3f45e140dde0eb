"""Models in which a finding is staged, and what is found on them."""

from dataclasses import dataclass, field, replace

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.endings import EndingChange, EndingsReport, Reference
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.judgement import Verdict
from sidecar.analysis.overlong import Overlong
from sidecar.analysis.report import ModelReport
from sidecar.engine.names import Gauge
from sidecar.findings.catalog import find
from sidecar.requests.messages import Configuration, Speculation
from sidecar.settings.baselines import PlainCache
from sidecar.settings.groups import Thresholds
from tests.export.reports import (
    difference,
    engine,
    group,
    judgement,
    model,
    speed,
    speedup,
    temperature,
    timed_model,
)

PROBABILISTIC = Speculation("draft_model", 3, draft_sample_method="probabilistic")
GREEDY = Speculation(
    "draft_model", 3, rejection_sample_method="standard", draft_sample_method="greedy"
)
COLD, HOT = "0", "0.7-1"


def sums(rate, requests=60):
    """Requests of 30 draft tokens, which differ by a fifth from their mean."""
    accepted = [round(30 * rate * (0.8 if number % 2 else 1.2)) for number in range(requests)]
    return Sums(
        requests=requests,
        drafted=30 * requests,
        accepted=sum(accepted),
        drafted_squared=900 * requests,
        accepted_squared=sum(count**2 for count in accepted),
        product=sum(30 * count for count in accepted),
    )


def traffic(cold=0.8, hot=0.4, *, way="plain", requests=60):
    rates = {(COLD, "greedy"): cold, (HOT, way): hot}
    return {cell: sums(rate, requests) for cell, rate in rates.items() if rate is not None}


def pod(
    *,
    speculation=GREEDY,
    groups=(),
    engines=None,
    verdict=Verdict.BREAK_EVEN,
    rate=0.6,
    hot=0.7,
    cold=0.7,
    **changes,
):
    """``hot`` and ``cold`` are the acceptance rates by temperature; None: no such requests."""
    judged = judgement(
        verdict, rate, speculation=speculation, has_collapsed=changes.pop("collapsed", False)
    )
    engines = (engine(speculation=speculation),) if engines is None else engines
    rates = {COLD: cold, HOT: hot}
    return model(
        *(temperature(label, rate=rate) for label, rate in rates.items() if rate is not None),
        engines=engines,
        groups=groups,
        **{"judgement": judged} | changes,
    )


def found(report, sampling=None, structured_undrafted=0):
    """The findings on a model; the others are as in ``ModelReport``."""
    known = replace(report, sampling=sampling or {}, structured_undrafted=structured_undrafted)
    return find(known, Thresholds())


def codes(report, sampling=None, structured_undrafted=0):
    return [finding.code for finding in found(report, sampling, structured_undrafted)]


def undrafted(tokens=5000.0, **speculation):
    quiet = engine(
        speculation=replace(GREEDY, **speculation), acceptance=None, undrafted_tokens=tokens
    )
    return pod(engines=(quiet,), verdict=Verdict.INSUFFICIENT_DATA, rate=None)


EAGLE, LONG = Speculation("eagle", 3, draft_sizes={"num_hidden_layers": 1}), 4000
MTP = replace(EAGLE, method="mtp", draft_sizes={"num_hidden_layers": 61})
AT_THE_LIMIT = {Gauge.WAITING_FOR_CAPACITY: 3.0, Gauge.REQUESTS_RUNNING: 64.0}


def cached(
    prompt=160,
    *,
    speculation=EAGLE,
    hits=0.6,
    preemptions=0,
    layers=None,
    plain=None,
    **changes,
):
    """40 requests with prompts of this many tokens; the KV cache has 442,368 in blocks of 16."""
    cache = CacheWindow(40, 40 * prompt, 4000, 40 * prompt, hits * 40 * prompt, preemptions)
    sizes = {} if layers is None else {"num_hidden_layers": layers}
    known = {"configuration": Configuration(sizes=sizes, max_num_seqs=64)}
    one = engine(speculation=speculation, cache=cache, **known | changes)
    return pod(
        engines=(one,),
        speculation=None,
        plain_cache=PlainCache(capacity_tokens=plain),
    )


LOWER, HIGHER, ALIKE = difference(0.3, 0.7), difference(0.7, 0.3), difference(0.68, 0.7)
FEWER = TokensAdvice(direction=Direction.FEWER, now=3, best=1, best_seconds=0.02, now_seconds=0.03)
MANY = Advice(tokens=FEWER, can_schedule=True)
SOME = replace(MANY, tokens=replace(FEWER, best_seconds=0.028))  # saves less than sampled drafts
MORE = Advice(tokens=TokensAdvice(direction=Direction.MORE, now=3, acceptance=0.9))


def by_load(low_ms, now_ms, verdict):
    """9 requests run; with one, a token takes ``low_ms`` where plain decoding takes 20 ms."""
    report = timed_model(temperature(COLD), temperature(HOT))
    low, *others = report.loads
    low = replace(low, seconds=low_ms / 1000 * 5000, steps=2000.0, tokens=5000.0)
    judged = judgement(verdict, 0.6, speculation=GREEDY, by_speedup=True)
    return replace(report, loads=(low, *others), speed=speed(30.0, now_ms), judgement=judged)


def low(by, name, difference=LOWER):
    """A group that accepts less than the others, and no other."""
    return (group(by, name, difference=difference),)


LOW_ENGINE = engine(index="1", speculation=GREEDY, difference=LOWER)
SHORT_PROMPTS = group("prompt_tokens", "0-512", difference=HIGHER)


def by_context(ratios):
    """A pod with these speedups, each known within 0.01, by context from short to long."""
    return pod(contexts={label: speedup(10 * ratio, 10) for label, ratio in ratios.items()})


def ending(name, share, usual):
    """A pod of whose last replies a share ends so; it was ``usual`` before."""
    change = EndingChange(
        ending=name,
        share=share,
        usual=usual,
        standard_errors=12.0,
        odds_ratio=share * (1 - usual) / (usual * (1 - share)),
        requests=120,
        reference=Reference.PAST,
    )
    shares = {"normal": 1 - share, "loop": 0.0, "empty": 0.0} | {name: share}
    return pod(endings=EndingsReport(requests=120, shares=shares, changes={name: change}))


@dataclass(frozen=True)
class Staged:
    """A cause that is staged: what is found is this ``code`` alone.

    The others are as in ``found``.
    """

    code: str
    report: ModelReport
    sampling: dict = field(default_factory=dict)
    structured_undrafted: int = 0

    @property
    def findings(self):
        return found(self.report, self.sampling, self.structured_undrafted)


FORBIDDEN = 200_000
STRUCTURED_WITHOUT_DRAFTS = group("output", "structured", without_drafts=True)
DROPS_A_BLOCK = Configuration(drops_cache_block=True)
PREEMPTING = CacheWindow(40, 4000, 4000, 4000, 2000, 2)
WAITING = {Gauge.WAITING_FOR_CAPACITY: 3.0}

# The sentences of each kind of finding are tested with the first one here.
STAGED = [
    Staged("greedy_drafting", pod(hot=0.4, cold=0.8), traffic()),
    # The configuration tells, with no request at temperature 0.
    Staged("greedy_drafting", pod(hot=0.4, cold=None)),
    Staged("greedy_drafting", pod(hot=0.4, cold=None), traffic(cold=None, way="filtered")),
    Staged("greedy_drafting", pod(hot=0.68, cold=0.9), traffic(0.9, 0.68)),
    # The number of draft tokens follows from it.
    Staged("greedy_drafting", pod(hot=0.4, cold=0.8, advice=SOME), traffic()),
    Staged("greedy_drafting", pod(hot=0.4, groups=low("sampling", "filtered")), traffic()),
    Staged("too_many_tokens", pod(advice=MANY)),
    Staged("too_few_tokens", pod(advice=MORE, rate=0.9)),
    Staged("load", by_load(12.0, 40.0, Verdict.NET_NEGATIVE)),
    Staged("long_contexts", by_context({"256-1k": 1.3, "4k-16k": 0.8})),
    Staged("long_prompts", pod(groups=(SHORT_PROMPTS, *low("prompt_tokens", "8k-32k")))),
    Staged("structured_output", pod(groups=low("output", "structured"))),
    Staged(
        "structured_output",
        pod(groups=(STRUCTURED_WITHOUT_DRAFTS,)),
        structured_undrafted=FORBIDDEN,
    ),
    Staged("adapter", pod(groups=low("adapter", "legal"))),
    Staged("sampling", pod(groups=low("sampling", "penalties"))),
    Staged(
        "one_engine",
        pod(engines=(engine(speculation=GREEDY), LOW_ENGINE), groups=low("adapter", "legal")),
    ),
    Staged("mismatch", pod(collapsed=True, rate=0.01, advice=MANY), traffic(0.01, 0.01)),
    Staged(
        "synthetic_acceptance",
        pod(
            speculation=replace(GREEDY, rejection_sample_method="synthetic"), advice=MORE, rate=0.9
        ),
        traffic(),
    ),
    Staged(
        "long_requests",
        replace(
            pod(advice=MANY, groups=(SHORT_PROMPTS, *low("prompt_tokens", "8k-32k")), rate=0.3),
            overlong=Overlong(requests=12, longest=2497, share=0.6),
        ),
        traffic(),
    ),
    Staged("not_speculating", undrafted()),
    Staged("looping", ending("loop", 0.38, 0.02)),
    Staged("empty_replies", ending("empty", 0.38, 0.02)),
    Staged("prefix_cache", cached()),
    Staged(
        "prefix_cache",
        cached(speculation=replace(EAGLE, keeps_last_block=False), configuration=DROPS_A_BLOCK),
    ),
    Staged("room", cached(LONG, preemptions=2, layers=4)),
    Staged("room", cached(LONG, preemptions=2, plain=500_000)),
    Staged("room", cached(LONG, layers=4, kv_cache_peak=0.95, gauges=WAITING)),
]


def examples():
    """By code and evidence, a staged cause that finds it."""
    first = {}
    for staged in STAGED:
        finding = staged.findings[0]
        first.setdefault((finding.code, type(finding)), staged)
    return first
