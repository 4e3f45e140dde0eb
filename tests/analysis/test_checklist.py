"""The checklist of a model that does not speculate: each line, what follows, and what to try."""

from dataclasses import replace

import pytest

from sidecar.analysis.checklist.checklist import (
    LEAST_POLLS,
    Condition,
    Readiness,
    Stance,
    checklist,
)
from sidecar.analysis.checklist.traffic import Traffic, TrafficWindow
from sidecar.analysis.engine.polled_load import PolledLoad, PolledLoadWindow
from sidecar.analysis.windows.growth import HOUR
from sidecar.engine.names import Counter, Gauge
from sidecar.requests.messages import Configuration, Hello, HelloState
from sidecar.requests.tally import Outcome
from tests.analysis.analysis_tools import PluginEnd, Server, finished, snap

LEAST = 20
GOOD = Traffic(
    requests=40,
    seconds=600.0,
    cool=1.0,
    first_token=0.1,
    temperature=0.0,
    prompt_tokens=(50.0, 90.0),
    output_tokens=(100.0, 200.0),
)
LIGHT = PolledLoad(busy_polls=600, running=2.0, most=6.0, queued=0.0, kv_cache_high=0.2)
FOR, AGAINST = Stance.FOR, Stance.AGAINST
BETWEEN, UNKNOWN = Stance.UNDECIDED, Stance.UNKNOWN
# Of ten lines, these leave five between the limits, and five speak for speculation.
HALF_BETWEEN = replace(GOOD, cool=0.5, hot=0.1, long_prompts=0.2, structured=0.29, shaped=0.3)
UNDECIDED_LOAD = {"running": 20.0}


NOTHING = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}


def plain_request(temperature=0, **changes):
    """A finished request of a model that does not speculate."""
    return finished(temperature, **(NOTHING | changes))


def hello(vllm="0.32.0", **configuration):
    """What the plug-in in a vLLM that does not speculate says of itself."""
    return Hello(
        plugin="0.1.0",
        vllm=vllm,
        model="m",
        engine=0,
        start="1",
        started=1000.0,
        state=HelloState.OBSERVING,
        configuration=Configuration(**configuration),
    )


def judged(traffic=GOOD, *loads):
    return checklist(traffic, loads or (LIGHT,), LEAST)


def stances(result):
    return {line.condition: line.stance for line in result.lines}


def test_traffic_that_suits_speculation_is_worth_a_try():
    """Every condition of the list has a line, and a head and a small model are the first two."""
    result = judged()

    assert list(stances(result)) == list(Condition)
    assert set(stances(result).values()) == {FOR}
    assert result.verdict is Readiness.TRY
    assert [dict(one.options) for one in result.candidates] == [
        {"method": "eagle3", "model": "YOUR-EAGLE3-HEAD", "num_speculative_tokens": 3},
        {"method": "draft_model", "model": "YOUR-DRAFT-MODEL", "num_speculative_tokens": 3},
    ]


@pytest.mark.parametrize(
    ("condition", "change", "stance"),
    [
        (Condition.TEMPERATURES, {"cool": 0.6}, FOR),
        (Condition.TEMPERATURES, {"cool": 0.59, "hot": 0.41}, BETWEEN),
        (Condition.TEMPERATURES, {"cool": 0.4, "hot": 0.6}, AGAINST),
        (Condition.OUTPUTS, {"output_tokens": (50.0, 60.0)}, FOR),
        (Condition.OUTPUTS, {"output_tokens": (49.0, 60.0)}, BETWEEN),
        (Condition.OUTPUTS, {"output_tokens": (20.0, 60.0)}, AGAINST),
        (Condition.FIRST_TOKENS, {"first_token": 0.5}, BETWEEN),
        (Condition.FIRST_TOKENS, {"first_token": 0.6}, AGAINST),
        (Condition.FIRST_TOKENS, {"first_token": None}, UNKNOWN),
        (Condition.PROMPTS, {"long_prompts": 0.11}, BETWEEN),
        (Condition.PROMPTS, {"long_prompts": 0.5}, AGAINST),
        (Condition.STRUCTURED, {"structured": 0.3}, BETWEEN),
        (Condition.STRUCTURED, {"structured": 1.0}, BETWEEN),
        (Condition.SAMPLING, {"shaped": 0.3}, BETWEEN),
        (Condition.SAMPLING, {"shaped": 1.0}, BETWEEN),
        (Condition.SAMPLING, {"shaped": None}, UNKNOWN),
        (Condition.PARAMETERS, {"rejected": {"min_p": 0.00001}}, BETWEEN),
        (Condition.PARAMETERS, {"rejected": {"min_p": 0.001, "logit_bias": 0.01}}, AGAINST),
    ],
)
def test_a_line_follows_from_the_requests_alone(condition, change, stance):
    """No other line changes with it."""
    known = stances(judged(replace(GOOD, **change)))

    assert known.pop(condition) is stance
    assert set(known.values()) == {FOR}


@pytest.mark.parametrize(
    ("condition", "change", "stance"),
    [
        (Condition.LOAD, {"running": 8.0}, FOR),
        (Condition.LOAD, {"running": 20.0}, BETWEEN),
        (Condition.LOAD, {"running": 32.0}, AGAINST),
        (Condition.QUEUE, {"queued": 0.2}, BETWEEN),
        (Condition.QUEUE, {"queued": 0.3}, AGAINST),
        (Condition.KV_CACHE, {"kv_cache_high": 0.8}, BETWEEN),
        (Condition.KV_CACHE, {"kv_cache_high": 0.9}, AGAINST),
        (Condition.KV_CACHE, {"kv_cache_high": None}, UNKNOWN),
    ],
)
def test_a_line_follows_from_the_engine_alone(condition, change, stance):
    """Of several engines the busiest counts, and the fullest cache."""
    known = stances(judged(GOOD, LIGHT, replace(LIGHT, **change)))
    if change.get("kv_cache_high", 0.0) is None:
        known = stances(judged(GOOD, replace(LIGHT, **change)))

    assert known.pop(condition) is stance
    assert set(known.values()) == {FOR}


def test_an_engine_that_was_seldom_busy_says_nothing():
    """One poll of one of two engines is no queue and no full cache."""
    once = PolledLoad(busy_polls=1, running=100.0, most=100.0, queued=1.0, kv_cache_high=1.0)

    result = judged(GOOD, LIGHT, once)
    assert result.load == LIGHT
    assert set(stances(result).values()) == {FOR}


def test_too_few_requests_or_polls_say_nothing():
    """Never a guess: the lines of what is not known are unknown, and so is what follows."""
    few = judged(replace(GOOD, requests=LEAST - 1))
    none = judged(None)
    quiet = judged(GOOD, replace(LIGHT, busy_polls=LEAST_POLLS - 1))
    of_engines = {Condition.LOAD, Condition.QUEUE, Condition.KV_CACHE}

    for result in (few, none):
        known = {name for name, stance in stances(result).items() if stance is not UNKNOWN}
        assert known == of_engines
        assert result.verdict is Readiness.INSUFFICIENT_DATA
        assert result.candidates == ()
    assert {name for name, stance in stances(quiet).items() if stance is UNKNOWN} == of_engines
    assert quiet.verdict is Readiness.INSUFFICIENT_DATA


@pytest.mark.parametrize(
    ("traffic", "load"),
    [({"first_token": None}, {}), ({}, {"queued": None}), ({}, {"kv_cache_high": None})],
)
def test_while_a_line_that_could_block_is_not_known_it_is_not_worth_a_try(traffic, load):
    """The others alone can leave it open or off, and a load that is not known blocks nothing."""
    changed = replace(LIGHT, **load)
    hot = replace(GOOD, **traffic, cool=0.0, hot=1.0)

    unknown = judged(replace(GOOD, **traffic), changed)
    assert unknown.verdict is Readiness.INSUFFICIENT_DATA
    assert unknown.candidates == ()
    assert judged(hot, changed).verdict is Readiness.UNDECIDED
    assert judged(GOOD, replace(LIGHT, running=None)).verdict is Readiness.TRY


@pytest.mark.parametrize(
    ("traffic", "load"),
    [
        ({"rejected": {"logit_bias": 0.2}}, {}),
        ({"first_token": 0.9}, {}),
        ({}, {"queued": 0.5}),
        ({}, {"kv_cache_high": 0.97}),
    ],
)
def test_one_line_that_blocks_is_enough_to_leave_it_off(traffic, load):
    """Then there is nothing to try."""
    result = judged(replace(GOOD, **traffic), replace(LIGHT, **load))

    assert result.verdict is Readiness.LEAVE_OFF
    assert result.candidates == ()


def test_what_speaks_against_it_leaves_it_open_until_it_is_the_majority():
    """Of eight lines, four leave it open; of seven that are known, four decide."""
    hot = replace(GOOD, cool=0.0, hot=1.0)
    four = replace(hot, output_tokens=(5.0, 9.0), long_prompts=1.0, first_token=None)
    busy = replace(LIGHT, running=40.0, queued=None)

    assert judged(hot).verdict is Readiness.UNDECIDED
    assert judged(HALF_BETWEEN, replace(LIGHT, **UNDECIDED_LOAD)).verdict is Readiness.UNDECIDED
    assert judged(four, busy).verdict is Readiness.UNDECIDED
    assert judged(four, replace(busy, kv_cache_high=None)).verdict is Readiness.LEAVE_OFF


def test_greedy_extraction_of_json_is_worth_a_try():
    """A grammar leaves less to guess, and a suffix tree proposes the keys: nothing against it."""
    extraction = replace(GOOD, structured=1.0, prompt_tokens=(2400.0, 2900.0))
    result = judged(extraction)

    assert result.verdict is Readiness.TRY
    assert [one.method for one in result.candidates] == ["suffix", "eagle3"]


@pytest.mark.parametrize(
    ("traffic", "running", "methods", "tokens", "are_sampled"),
    [
        ({"hot": 0.29}, 2.0, ["eagle3", "draft_model"], 3, False),
        ({"hot": 0.3}, 2.0, ["eagle3", "draft_model"], 3, True),
        ({"cool": 0.0, "hot": 1.0}, 9.0, ["eagle3", "draft_model"], 2, True),
        ({}, 33.0, ["eagle3", "draft_model"], 1, False),
        ({"structured": 0.3}, 2.0, ["suffix", "eagle3"], 3, False),
        ({"long_prompts": 0.3}, 2.0, ["suffix", "eagle3"], 3, False),
        ({"structured": 1.0, "cool": 0.0, "hot": 0.6}, 2.0, ["eagle3", "draft_model"], 3, True),
        ({}, 8.0, ["eagle3", "draft_model"], 3, False),
        ({}, 32.0, ["eagle3", "draft_model"], 1, False),
    ],
)
def test_the_traffic_and_the_load_decide_what_to_try_first(
    traffic, running, methods, tokens, are_sampled
):
    """Hot requests need sampled drafts, what repeats needs no model, and a full engine few."""
    result = judged(replace(GOOD, **traffic), replace(LIGHT, running=running))
    heads = [one for one in result.candidates if one.method == "eagle3"]

    assert [one.method for one in result.candidates] == methods
    assert [one.options["num_speculative_tokens"] for one in heads] == [tokens]
    assert [one.samples_drafts for one in heads] == [are_sampled]


@pytest.mark.parametrize(
    ("vllm", "are_sampled", "rejects"),
    [
        ("0.13.0", False, False),
        ("0.14.1", False, True),
        ("0.21.0", False, True),
        ("0.22.0", True, True),
        ("0.32.1rc2.dev3+cpu", True, True),
        ("1.0.0", True, True),
        ("0.1.dev1+g1234567", True, True),  # built from source: of unknown age
        (None, True, True),
    ],
)
def test_an_option_is_advised_where_this_vllm_has_it(vllm, are_sampled, rejects):
    """And a parameter speaks against speculation where this vLLM would reject it."""
    hot = replace(GOOD, cool=0.5, hot=0.5)
    used = replace(GOOD, rejected={"min_p": 0.5})
    head, _ = checklist(hot, [LIGHT], LEAST, hello(vllm)).candidates
    verdict = checklist(used, [LIGHT], LEAST, hello(vllm)).verdict

    assert head.samples_drafts is are_sampled
    assert verdict is (Readiness.LEAVE_OFF if rejects else Readiness.TRY)


def test_only_what_the_engine_has_is_given_up():
    """Such as on a CPU, where vLLM has no model runner V2."""
    repeating = replace(GOOD, structured=0.5)
    here = hello(async_scheduling=True, model_runner_v2=False)
    suffix, _ = checklist(repeating, [LIGHT], LEAST, here).candidates

    assert suffix.gives_up == ("async scheduling",)


def test_requests_are_counted_by_what_they_are_like():
    """Each property at its edge, and none of a request that failed."""
    window = TrafficWindow()
    window.mark(1000.0)
    bound = {"arrival": 10.0, "first_token": 20.0, "last_token": 30.0}
    window.add(
        1001.0,
        [
            plain_request(50, prompt_tokens=8192),
            plain_request(51, prompt_tokens=8193, structured=True, sampling="filtered"),
            plain_request(80, sampling="penalties", parameters=("min_p", "logprobs"), **bound),
            plain_request(81, arrival=None, output_tokens=1),
            plain_request(0, outcome=Outcome.ERROR),
        ],
    )
    window.mark(1060.0)

    traffic = window.traffic(3)
    assert (traffic.requests, traffic.seconds) == (4, 60.0)
    assert (traffic.cool, traffic.hot) == (0.25, 0.25)
    assert (traffic.long_prompts, traffic.structured, traffic.shaped) == (0.25, 0.25, 0.5)
    assert traffic.first_token == pytest.approx(1 / 3)
    assert traffic.rejected == {"min_p": 0.25}
    assert traffic.temperature == pytest.approx(0.655, rel=0.02)  # within a bin
    assert traffic.output_tokens[0] == 31
    assert window.traffic(4).first_token is None

    window.add(1061.0, [plain_request(0, sampling=None)])
    assert window.traffic(1).shaped is None


def test_requests_are_forgotten_after_an_hour():
    """And at once if the clock was set back: nobody knows how old they are then."""
    window = TrafficWindow()
    window.mark(1000.0)
    window.add(1000.0, [plain_request()])
    window.mark(1000.0 + HOUR)
    assert window.traffic(1).requests == 1

    window.mark(1000.0 + 2 * HOUR)
    assert window.traffic(1) == Traffic(seconds=HOUR)

    window.add(1000.0 + 2 * HOUR, [plain_request()])
    window.mark(500.0)
    assert window.traffic(1) == Traffic(seconds=0.0)


def test_an_engine_is_as_loaded_as_its_busy_polls_say():
    """Idle polls are no load; only waiting for capacity is a queue, where vLLM tells.

    A cache that is empty at idle polls is no less full at the busy ones.
    """
    window = PolledLoadWindow()
    running = Gauge.REQUESTS_RUNNING
    polls = [
        {running: 0.0, Gauge.KV_CACHE_USAGE: 0.0},
        {running: 2.0, Gauge.REQUESTS_WAITING: 1.0, Gauge.WAITING_FOR_CAPACITY: 0.0},
        {running: 4.0, Gauge.REQUESTS_WAITING: 1.0},
        {running: 6.0, Gauge.KV_CACHE_USAGE: 0.99},
        *[{running: 0.0, Gauge.KV_CACHE_USAGE: 0.0}] * 100,
        {Gauge.KV_CACHE_USAGE: 0.5},
    ]
    for at, gauges in enumerate(polls):
        window.observe(float(at), gauges)

    load = window.load
    assert (load.busy_polls, load.running, load.most) == (3, 4.0, 6.0)
    assert load.queued == pytest.approx(1 / 3)
    assert load.kv_cache_high == pytest.approx(0.99)
    assert PolledLoadWindow().load == PolledLoad()


def plain(tokens):
    """A page of a vLLM that does not speculate, but for the plug-in's own tokens."""
    return snap(counters={Counter.FIRST_TOKENS: 4.0, Counter.GENERATION_TOKENS: float(tokens)})


def test_a_model_that_does_not_speculate_has_a_checklist():
    """From what its plug-in reports; none while vLLM's page cannot be read."""
    server = Server(thresholds={"min_requests": 4})
    plugin = PluginEnd(server, speculation=None)
    plugin.generated = 0
    server.poll(plain(0))
    for _ in range(LEAST_POLLS):
        plugin.finish(100, **NOTHING)
        server.poll(plain(plugin.generated))

    known = server.model().checklist
    assert known.traffic.requests == LEAST_POLLS
    assert known.verdict is Readiness.UNDECIDED
    assert [line.condition for line in known.lines_that(AGAINST)] == [Condition.TEMPERATURES]
    assert known.load.running == 1.0
    assert server.report(later=60).models[0].checklist is None


def test_nothing_is_left_of_the_time_before_a_restart():
    """Neither requests without drafts of a vLLM that speculated, nor its load."""
    server = Server(thresholds={"min_requests": 4})
    drafting = PluginEnd(server)
    server.poll(snap(drafts=0))
    for _ in range(LEAST_POLLS):
        drafting.finish(output_tokens=1, **NOTHING)
        drafting.finish()
        server.poll(drafting.counted(usage=0.99))

    drafting.close()
    server.at += 1.0
    restarted = server.at
    plugin = PluginEnd(server, connection=2, start="plain", speculation=None)
    plugin.generated = 0
    server.poll(plain(0), start=restarted)
    for _ in range(LEAST_POLLS):
        plugin.finish(output_tokens=200, **NOTHING)
        server.poll(plain(plugin.generated), start=restarted)

    known = server.model().checklist
    assert known.traffic.requests == LEAST_POLLS
    assert known.traffic.output_tokens[0] == 200
    assert known.traffic.seconds == LEAST_POLLS
    assert known.load.kv_cache_high == 0.5


def test_the_vllm_that_the_plug_in_is_in_decides_what_it_may_be_given():
    """The version is that of the life whose numbers count."""
    server = Server(thresholds={"min_requests": 4})
    plugin = PluginEnd(server, speculation=None)
    plugin.generated = 0
    server.poll(plain(0))
    for _ in range(4):
        plugin.finish(100, **NOTHING)
        server.poll(plain(plugin.generated))

    assert server.model().checklist.vllm == "0.32.0"


def test_without_a_plug_in_only_the_engine_is_known():
    """That is too little for any verdict."""
    server = Server()
    server.poll(plain(0))

    known = server.model().checklist
    assert known.traffic is None
    assert known.verdict is Readiness.INSUFFICIENT_DATA


def test_a_model_that_speculates_has_none():
    """It has verdicts by what it does."""
    server = Server()
    server.poll(snap(drafts=3))

    assert server.model().checklist is None
