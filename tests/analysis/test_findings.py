"""Each finding is first where it is staged.

Situations that are healthy or ambiguous have no finding.
"""

import importlib
import pkgutil
from dataclasses import replace

import pytest

import sidecar.findings
from sidecar.analysis.advice import Advice
from sidecar.analysis.evidence import Loops
from sidecar.analysis.judgement import Verdict
from sidecar.analysis.speed.withheld import Withheld
from sidecar.engine.names import Counter
from sidecar.findings.catalog import BY_CODE, KINDS
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.room import Fitting
from sidecar.findings.structured_output import ForbiddenDrafts
from sidecar.requests.keys import Table
from sidecar.requests.messages import Configuration
from tests.analysis.analysis_tools import PluginEnd, Server, snap
from tests.analysis.staged_findings import (
    ALIKE,
    AT_THE_LIMIT,
    COLD,
    EAGLE,
    FEWER,
    FORBIDDEN,
    GREEDY,
    HOT,
    LONG,
    LOWER,
    MANY,
    MORE,
    MTP,
    PREEMPTING,
    PROBABILISTIC,
    STAGED,
    WAITING,
    by_load,
    cached,
    codes,
    examples,
    found,
    low,
    pod,
    traffic,
    undrafted,
)
from tests.export.reports import (
    difference,
    engine,
    group,
    judgement,
    model,
    speed,
    speedup,
    temperature,
    window,
)


@pytest.mark.parametrize("staged", STAGED, ids=lambda staged: staged.code)
def test_a_staged_cause_is_found_and_no_other_claims_the_loss(staged):
    assert [finding.code for finding in staged.findings] == [staged.code]


def test_each_kind_of_finding_is_staged():
    """The tests of its words go through what is staged."""
    missing = BY_CODE.keys() - {code for code, _ in examples()}
    assert missing == set(), "add a row to STAGED in tests/analysis/staged_findings.py"
    assert ("structured_output", ForbiddenDrafts) in examples()


def test_the_catalog_has_each_kind_once_in_the_order_of_places():
    """They are told in this order, and a dashboard's row has it."""
    places = [kind.place for kind in KINDS]
    assert places == sorted(places, key=list(Place).index)
    assert len(BY_CODE) == len(KINDS)


def test_the_catalog_has_the_kinds_of_every_module():
    modules = [
        importlib.import_module(f"sidecar.findings.{module.name}")
        for module in pkgutil.iter_modules(sidecar.findings.__path__)
    ]
    declared = [
        kind for module in modules for kind in vars(module).values() if type(kind) is FindingKind
    ]
    assert {kind.code for kind in declared} == BY_CODE.keys()


@pytest.mark.parametrize(
    ("short", "long", "tokens", "found_codes", "advised"),
    [
        (1.3, 0.8, 1000.0, ["long_contexts"], True),
        (1.3, 0.8, 20.0, ["long_contexts"], False),  # a small part
        (1.3, 0.96, 1000.0, [], None),  # not clearly below 0.97
        (1.01, 0.8, 1000.0, [], None),  # it pays nowhere
        (None, 0.8, 1000.0, [], None),
    ],
)
def test_long_contexts_lose_where_shorter_ones_gain(short, long, tokens, found_codes, advised):
    """Each known within 0.01, at two standard errors 0.02."""
    ratios = {"256-1k": short, "4k-16k": long}
    contexts = {
        label: replace(speedup(10 * ratio, 10), tokens=tokens if ratio is long else 1000.0)
        for label, ratio in ratios.items()
        if ratio is not None
    }
    findings = found(pod(contexts=contexts), {})

    assert [finding.code for finding in findings] == found_codes
    assert all(finding.is_advice == advised for finding in findings)


UNDRAFTED = {"structured": True, "drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
STRUCTURED = {"table": Table.OUTPUT, "key": "structured"} | UNDRAFTED
ADAPTER = {"table": Table.ADAPTER, "key": "legal", "adapter": "legal"}
GOOD, BAD = 24, 12  # accepted of 30 draft tokens, two more or fewer


def served(*requests, speculation=GREEDY, polls=40):
    """The codes of what was found once each of ``requests`` finished at each of 40 polls.

    That takes a quarter of an hour, and the numbers are the plug-ins'.
    """
    server = Server(
        thresholds={"min_drafts_per_second": 0.1}, plugin={"adapters": True}, latency_window=1000
    )
    plugins = [
        PluginEnd(server, number, engine=number, speculation=speculation) for number in (0, 1)
    ]
    server.poll(*(plugin.counted() for plugin in plugins))
    for number in range(polls):
        for request in requests:
            changes = {"accepted_tokens": GOOD, "temperature": 0} | request
            changes["accepted_tokens"] += 2 * (number % 3 - 1) if changes["accepted_tokens"] else 0
            plugins[changes.pop("engine", 0)].finish(**changes)
        server.poll(*(plugin.counted() for plugin in plugins), seconds=24.0)
    return [finding.code for finding in server.model().findings]


@pytest.mark.parametrize(
    ("found", "requests"),
    [
        ("greedy_drafting", [{}, {"temperature": 80, "accepted_tokens": BAD}]),
        ("greedy_drafting", [{"temperature": 100, "accepted_tokens": BAD}]),
        ("long_prompts", [{}, {"prompt_tokens": 20_000, "accepted_tokens": BAD}]),
        ("structured_output", [{}, {"structured": True, "accepted_tokens": BAD}]),
        ("structured_output", [{}, STRUCTURED]),
        ("adapter", [{}, {"accepted_tokens": BAD} | ADAPTER]),
        ("sampling", [{"temperature": 80, "sampling": "plain"},
                      {"temperature": 80, "sampling": "filtered", "accepted_tokens": BAD}]),
        ("one_engine", [{}, {"engine": 1, "accepted_tokens": BAD}]),
        (None, [{}, {"accepted_tokens": GOOD - 1} | ADAPTER]),
        (None, [{}, {"output_tokens": 1} | STRUCTURED]),  # there was nothing to draft
        (None, [{}, {"output_tokens": 1, "structured": False, "table": Table.OUTPUT, "key": "free"}
                | UNDRAFTED,
                {"table": Table.OUTPUT, "key": "structured", "structured": True}]),
        # at no temperature with others
        (None, [{"temperature": 80, "accepted_tokens": BAD} | ADAPTER, {}]),
        (None, [{"prompt_tokens": 100, "accepted_tokens": BAD}, {"prompt_tokens": 20_000}]),
    ],
)  # fmt: skip
def test_what_the_plug_ins_report_is_found_through_the_state(found, requests):
    speculation = GREEDY if found == "greedy_drafting" else PROBABILISTIC
    assert served(*requests, speculation=speculation) == ([found] if found else [])


@pytest.mark.parametrize(
    ("tokens", "schedule", "found"),
    [
        (50, (), True),
        (5, (), False),
        (50, ((1, 4, 3), (5, 64, 0)), False),
        (50, ((1, 64, 2),), True),
    ],
)
def test_an_engine_that_decodes_without_a_draft_is_found_through_the_state(tokens, schedule, found):
    """``tokens`` are decoded at each of 40 polls."""
    pod = Server()
    plugin = PluginEnd(
        pod, speculation=replace(GREEDY, schedule=schedule, per_batch_size=bool(schedule))
    )
    plugin.generate(9)
    counters = {
        Counter.DRAFTS: 0.0,
        Counter.DRAFT_TOKENS: 0.0,
        Counter.ACCEPTED_TOKENS: 0.0,
        Counter.FIRST_TOKENS: 9.0,
    }
    for poll in range(41):
        pod.poll(snap(counters=counters | {Counter.GENERATION_TOKENS: 9.0 + tokens * poll}))
        plugin.generate(tokens).tick()
    found_codes = [finding.code for finding in pod.model().findings]
    assert found_codes == ["not_speculating"] * found


def test_greedy_drafting_has_the_hot_requests_own_evidence():
    """Not that of "other", whose temperatures nobody knows, nor labels of too few requests."""
    few = temperature("0.3-0.5", rate=0.5, window=replace(window(0.5, share=0.02), requests=3.0))
    few = replace(few, judgement=judgement(Verdict.INSUFFICIENT_DATA))
    report = model(
        temperature(COLD, rate=0.8),
        few,
        temperature(HOT, rate=0.4),
        temperature("other", rate=0.1),
        judgement=pod().judgement,
    )
    (finding,) = found(report, traffic())

    assert finding.temperatures == (HOT,)
    assert finding.rate == pytest.approx(0.45, abs=0.01)
    assert finding.cold_rate == pytest.approx(0.8)
    assert finding.length_at_most == pytest.approx(1 + 3 * 0.8)
    assert finding.is_bound_measured


def test_more_draft_tokens_are_not_advised_where_loops_flatter_the_rate():
    """Loops accept them all, and other text would not."""
    flattered = pod(advice=MORE, rate=0.9)
    loops = Loops(rate=1.0, share=0.4, whole=0.9, without=0.7)
    judged = flattered.judgement
    evidence = replace(judged.evidence, loops=loops)

    assert codes(flattered) == ["too_few_tokens"]
    assert codes(replace(flattered, judgement=replace(judged, evidence=evidence))) == []


@pytest.mark.parametrize(("way", "at_most"), [("plain", 3.29), ("filtered", 2.99)])
def test_without_cold_requests_a_draft_close_to_its_target_bounds_the_gain(way, at_most):
    """Acceptance rates of 0.75 and, with filters, 0.67 of three draft tokens: docs/why.md."""
    (finding,) = found(pod(hot=0.4, cold=None), traffic(cold=None, way=way))

    assert finding.length == pytest.approx(2.2)
    assert finding.length_at_most == pytest.approx(at_most, abs=0.05)
    assert (finding.is_bound_measured, finding.cold_rate) == (False, None)


@pytest.mark.parametrize(
    ("rate", "others", "speedup", "advised"),
    [
        (0.66, 0.81, 1.59, False),  # it breaks even at 31 %
        (0.25, 0.81, 1.59, True),
        (0.66, 0.81, None, False),
        (0.45, 0.81, None, True),  # by the rule of thumb
    ],
)
def test_structured_output_that_still_gains_is_a_fact(rate, others, speedup, advised):
    """A grammar cannot be drafted around, so there is something to change only where it loses."""
    lower = low("output", "structured", difference(rate, others))
    known = speed() if speedup else speed(withheld=Withheld.NO_REFERENCE)
    (finding,) = found(pod(groups=lower, speed=known), {})

    assert (finding.code, finding.is_advice) == ("structured_output", advised)


def test_an_adapter_that_gains_and_could_gain_more_is_advice_without_routing():
    (finding,) = found(pod(groups=low("adapter", "legal", difference(0.55, 0.9))), {})

    assert (finding.is_advice, finding.loses) == (True, False)


def test_facts_come_last_and_hide_no_advice():
    """The costliest group is shown, unless another one loses."""
    fact = group("output", "structured", difference=difference(0.6, 0.85, share=2 / 3))
    loss = group("adapter", "legal", difference=difference(0.4, 0.6, share=0.13))
    tokens = replace(MANY, tokens=replace(FEWER, best_seconds=0.0295))
    report = pod(groups=(fact, loss), advice=tokens)

    assert codes(report) == ["adapter"]
    assert codes(replace(report, groups=(fact,))) == ["too_many_tokens", "structured_output"]


@pytest.mark.parametrize(
    ("saved", "told"),
    [(0.53, ["too_many_tokens", "greedy_drafting"]), (0.05, ["greedy_drafting"])],
)
def test_fewer_tokens_that_save_more_than_sampled_drafts_could_come_first(saved, told):
    """12 tokens of which positions 6 to 12 accept 4 % and less: sampling would leave most of it."""
    tokens = replace(FEWER, best_seconds=(1 - saved) * FEWER.now_seconds)
    report = pod(hot=0.4, cold=0.8, advice=replace(MANY, tokens=tokens))
    assert codes(report, traffic()) == told


@pytest.mark.parametrize(("quiet", "found"), [("structured", ["structured_output"]), ("free", [])])
def test_only_of_structured_output_can_a_grammar_forbid_all_drafts(quiet, found):
    """Free output without drafts has another cause."""
    groups = tuple(
        group("output", name, without_drafts=name == quiet) for name in ("free", "structured")
    )
    assert codes(pod(groups=groups), {}, FORBIDDEN) == found


def test_room_is_told_in_requests_where_a_baseline_knows_the_plain_cache():
    """Of 4,000 prompt tokens and 100 generated ones each."""
    (measured,) = found(cached(LONG, preemptions=2, plain=500_000))
    (by_layers,) = found(cached(LONG, preemptions=2, layers=4))

    assert measured.fitting == Fitting(tokens=4100, requests=107, plain=121)
    assert by_layers.fitting is None


def test_findings_come_by_what_they_cost():
    """Hot requests are half of the draft tokens, and the adapter's a tenth."""
    adapter = group("adapter", "legal", difference=difference(0.3, 0.7, share=0.1))
    assert codes(pod(groups=(adapter,), hot=0.4), traffic()) == ["greedy_drafting", "adapter"]


@pytest.mark.parametrize(("requests", "found"), [(60, []), (300, ["greedy_drafting"])])
def test_hot_requests_that_accept_enough_must_accept_certainly_less(requests, found):
    """Sixty of each, at 70 and 80 %, are three errors apart: chance, among so many looks."""
    assert codes(pod(hot=0.7, cold=0.8), traffic(0.8, 0.7, requests=requests)) == found


SAMPLED = {
    "drafts are sampled already": {"draft_sample_method": "probabilistic"},
    "a vLLM without the option": {"draft_sample_method": None},
    "n-gram": {"method": "ngram"},
    "the first DFlash": {"method": "dflash", "draft_architectures": ("DFlashDraftModel",)},
    "a DFlash of an unknown kind": {"method": "dflash"},
    "all positions in one pass": {"method": "eagle3", "parallel_drafting": True},
    "suffix": {"method": "suffix"},
    "medusa": {"method": "medusa"},
    "a class of one's own": {"method": "custom_class"},
    "adaptive verification": {"adaptive_verification": True},
    "block verification": {"rejection_sample_method": "block"},
    "local argmax": {"local_argmax": True},
    "a heterogeneous vocabulary": {"heterogeneous_vocab": True},
}
BY_SAMPLING = {
    "cold and hot accept alike": (pod(), traffic(0.7, 0.69)),
    "cold and hot are equally low: the draft is weak": (
        pod(rate=0.3, hot=0.3, cold=0.3, verdict=Verdict.NET_NEGATIVE),
        traffic(0.3, 0.3),
    ),
    "only T 0": (pod(hot=None), traffic(hot=None)),
    "hot requests accept much": (pod(hot=0.75, cold=None), {}),
    "no plug-in": (pod(speculation=None, hot=0.4), traffic()),
} | {
    name: (pod(speculation=replace(GREEDY, **changes), hot=0.4), traffic())
    for name, changes in SAMPLED.items()
}
HEALTHY = {
    "a pod that has just started": pod(),
    "short prompts accept less": pod(groups=low("prompt_tokens", "0-512")),
    "free text accepts less": pod(groups=low("output", "free")),
    "the base model accepts less": pod(groups=low("adapter", "none")),
    "an adapter accepts a little less": pod(groups=low("adapter", "legal", ALIKE)),
    "two engines of three are low": pod(
        engines=tuple(engine(index=index, difference=LOWER) for index in "01")
    ),
    "load lowers the gain, and it still pays": by_load(12.0, 28.0, Verdict.BREAK_EVEN),
    "it pays at no load": by_load(30.0, 40.0, Verdict.NET_NEGATIVE),
    "an idle pod": undrafted(0.0),
    "a class of one's own may draft nothing": undrafted(method="custom_class"),
    "the number of draft tokens fits": pod(advice=Advice()),
    "requests wait for room, which more draft tokens would take": pod(
        advice=MORE,
        rate=0.9,
        engines=(engine(speculation=GREEDY, gauges=WAITING),),
    ),
    "requests are preempted": pod(
        advice=MORE, rate=0.9, engines=(engine(speculation=GREEDY, cache=PREEMPTING),)
    ),
    "K = 0 by the schedule": undrafted(schedule=((1, 64, 0),), per_batch_size=True),
    "n-gram finds nothing to draft": undrafted(method="ngram"),
    "a block is a small part of a long prompt": cached(LONG),
    "no prompts are shared": cached(hits=0.0),
    "nothing is left to be found": cached(hits=0.97),
    "the engine says that it drops no block": cached(
        configuration=Configuration(drops_cache_block=False)
    ),
    "vLLM 0.32 or later, of which the method tells nothing": cached(
        speculation=replace(EAGLE, keeps_last_block=False)
    ),
    "a draft model drops no block": cached(speculation=replace(EAGLE, method="draft_model")),
    "the draft takes little room": cached(LONG, preemptions=2, layers=80),
    "the baseline had little more room": cached(LONG, preemptions=2, plain=450_000),
    "there is room enough": cached(LONG, layers=4),
    "MTP's layers are the target's": cached(LONG, speculation=MTP, preemptions=2, layers=61),
    "max_num_seqs is the limit": cached(LONG, layers=4, kv_cache_peak=0.95, gauges=AT_THE_LIMIT),
    "room without a plug-in": cached(LONG, speculation=None, preemptions=2, plain=500_000),
}


@pytest.mark.parametrize("situation", [*BY_SAMPLING, *HEALTHY])
def test_healthy_or_ambiguous_situations_have_no_finding(situation):
    """A finding without evidence would send someone after nothing."""
    report, sampling = BY_SAMPLING.get(situation) or (HEALTHY[situation], {})
    assert codes(report, sampling) == []
