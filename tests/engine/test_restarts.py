"""Whether vLLM or an engine has started again, or another server has answered."""

from dataclasses import replace

import pytest

from sidecar.engine.identity import EngineKey
from sidecar.engine.names import Counter
from sidecar.engine.restarts import REFUSALS, WAITED, RestartDetector, Restarts
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import AnotherServer, CountersFell
from tests.engine.engine_tools import engine

NOTHING = Restarts()
ENGINE_0 = EngineKey("m", "0")
ENGINE_1 = EngineKey("m", "1")


def counted(number, tokens, *, preemptions=0, created=None):
    """An engine that has generated so many tokens, for a tenth as many prompt tokens."""
    counters = {
        Counter.GENERATION_TOKENS: float(tokens),
        Counter.PROMPT_TOKENS: tokens / 10,
        Counter.PREEMPTIONS: float(preemptions),
    }
    return replace(engine(counters), key=EngineKey("m", str(number)), created=created)


def page(*engines, start=None):
    return PageSnapshot(engines, start, malformed=0)


def both(tokens, other_tokens, **options):
    return page(counted(0, tokens), counted(1, other_tokens), **options)


@pytest.fixture
def detector():
    return RestartDetector()


def refused(detector, page, error, times=1):
    for _ in range(times):
        with pytest.raises(error):
            detector.detect(page)


def test_counters_that_grow_are_neither_a_restart_nor_another_server(detector):
    """As on the page of several API servers, which has no start time."""
    for tokens in (100, 100, 5000, 6000):
        assert detector.detect(both(tokens, 2 * tokens)) == NOTHING


def test_another_start_time_is_a_restart_at_once(detector):
    detector.detect(page(counted(0, 1000), start=1.0))

    assert detector.detect(page(counted(0, 5000), start=2.0)) == Restarts(vllm=True)


def test_an_engine_that_appears_some_pages_after_its_process_restarted_has_started_again(detector):
    detector.detect(both(1000, 2000, start=1.0))
    detector.detect(page(counted(0, 5), start=2.0))

    restarts = detector.detect(both(10, 5000, start=2.0))

    assert restarts == Restarts(engines=frozenset({ENGINE_1}))


def test_counters_that_are_made_anew_in_the_same_process_start_again_at_once(detector):
    """Elastic expert parallelism does so; the new ones may soon have counted more than the old."""
    old = [counted(number, 1000, created=1.0) for number in (0, 1)]
    new = [counted(0, 5000, created=2.0), counted(1, 10, created=1.0)]
    detector.detect(page(*old, start=1.0))

    restarts = detector.detect(page(*new, start=1.0))

    assert restarts == Restarts(engines=frozenset({ENGINE_0}))


def test_counters_that_fall_although_they_were_not_made_anew_are_a_fault_of_the_page(detector):
    detector.detect(page(counted(0, 1000, created=1.0), start=1.0))
    for _ in range(WAITED + 2):
        assert detector.detect(page(counted(0, 5, created=1.0), start=1.0)) == NOTHING


@pytest.mark.parametrize("start", [1.0, None])
def test_counters_that_fall_and_stay_low_started_again_two_pages_ago(start, detector):
    detector.detect(both(1000, 1000, start=start))
    for tokens in range(5, 5 + WAITED):
        refused(detector, both(tokens, tokens, start=start), CountersFell)

    restarts = detector.detect(both(40, 40, start=start))

    if start is None:
        assert restarts == Restarts(vllm=True)
    else:
        assert restarts == Restarts(engines=frozenset({ENGINE_0, ENGINE_1}))
    assert detector.detect(both(50, 50, start=start)) == NOTHING


def test_one_of_several_engines_starts_again_alone(detector):
    detector.detect(both(1000, 1000))
    refused(detector, both(1001, 5), CountersFell, WAITED)

    assert detector.detect(both(1003, 7)) == Restarts(engines=frozenset({ENGINE_1}))


@pytest.mark.parametrize("start", [1.0, None])
def test_a_page_that_falls_once_changes_nothing(start, detector):
    detector.detect(page(counted(0, 1000), start=start))
    refused(detector, page(counted(0, 5), start=start), CountersFell)

    restarts = detector.detect(page(counted(0, 1010), start=start))

    assert (restarts.vllm, restarts.engines) == (False, frozenset())
    assert restarts.is_foreign == (start is None), "another server's counters may be in the windows"


def test_a_single_counter_that_falls_in_one_process_is_a_fault_of_the_page(detector):
    detector.detect(page(counted(0, 1000, preemptions=50), start=1.0))
    for _ in range(WAITED + 2):
        assert detector.detect(page(counted(0, 1000, preemptions=3), start=1.0)) == NOTHING


@pytest.mark.parametrize("first", ["high", "low"])
def test_two_servers_without_a_start_time_that_answer_in_turn_are_no_restarts(first, detector):
    """The one that has counted more stays; the other's pages are refused and named."""
    high = (both(5000 + n, 9000 + n) for n in range(100))
    low = (both(900 + n, 800 + n) for n in range(100))
    detector.detect(next(high) if first == "high" else next(low))
    if first == "low":
        detector.detect(next(high))

    refused(detector, next(low), CountersFell)
    assert detector.detect(next(high)).is_foreign
    for _ in range(20):
        refused(detector, next(low), AnotherServer)
        assert detector.detect(next(high)) == NOTHING


def test_a_server_that_answers_for_long_and_then_leaves_again_was_another_one(detector):
    """Its pages looked like a restart. The old server's counters must not count as growth."""
    detector.detect(both(5000, 9000))
    refused(detector, both(900, 800), CountersFell, WAITED)
    assert detector.detect(both(902, 802)).vllm

    refused(detector, both(5001, 9001), AnotherServer, REFUSALS)
    assert detector.detect(both(903, 803)) == NOTHING
    refused(detector, both(5003, 9003), AnotherServer, REFUSALS)
    assert detector.detect(both(5004, 9004)) == Restarts(is_foreign=True)


def test_counters_that_pass_their_old_values_after_a_restart_are_not_another_server(detector):
    detector.detect(both(500, 500))
    refused(detector, both(5, 5), CountersFell, WAITED)
    for tokens in range(10, 1000, 100):
        detector.detect(both(tokens, tokens + 150))


def test_another_server_that_keeps_answering_is_accepted_but_its_past_is_no_growth(detector):
    detector.detect(both(5000, 9000))
    refused(detector, both(900, 800), CountersFell)
    detector.detect(both(5001, 9001))
    refused(detector, both(901, 801), AnotherServer, REFUSALS)

    assert detector.detect(both(902, 802)) == Restarts(vllm=True, is_foreign=True)


def test_an_older_process_is_refused_until_it_keeps_responding(detector):
    """Two servers that answer in turn: only the newer one's numbers are taken."""
    newer = page(counted(0, 100), start=2.0)
    older = page(counted(0, 9000), start=1.0)
    detector.detect(newer)
    for _ in range(2 * REFUSALS):
        refused(detector, older, AnotherServer)
        assert detector.detect(newer) == NOTHING

    refused(detector, older, AnotherServer, REFUSALS)
    assert detector.detect(older) == Restarts(vllm=True, is_foreign=True)
    assert detector.detect(older) == NOTHING


def test_a_page_that_names_other_engines_each_time_takes_no_memory(detector):
    for number in range(5000):
        detector.detect(page(counted(number, 1000)))

    assert len(detector._seen) <= 1024
