"""Whether vLLM or an engine has started again, or another server has answered."""

from dataclasses import replace

import pytest

from sidecar.engine.engine_key import EngineKey
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


def page(*engines, start=None, servers=()):
    return PageSnapshot(engines, start, malformed=0, servers=frozenset(servers))


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


@pytest.mark.parametrize("identity", [{"start": 1.0}, {"servers": {"a"}}], ids=["start", "id"])
def test_a_page_of_the_same_vllm_that_falls_once_changes_nothing(identity, detector):
    detector.detect(page(counted(0, 1000), **identity))
    refused(detector, page(counted(0, 5), **identity), CountersFell)

    assert detector.detect(page(counted(0, 1010), **identity)) == NOTHING
    assert not detector.is_in_doubt


def test_a_single_counter_that_falls_in_one_process_is_a_fault_of_the_page(detector):
    detector.detect(page(counted(0, 1000, preemptions=50), start=1.0))
    for _ in range(WAITED + 2):
        assert detector.detect(page(counted(0, 1000, preemptions=3), start=1.0)) == NOTHING


@pytest.mark.parametrize("in_a_row", [1, 2, 3, 5])
@pytest.mark.parametrize("first", ["high", "low"])
def test_two_servers_without_an_identity_that_answer_in_turn_are_no_restarts(
    first, in_a_row, detector
):
    """Once they are known, the pages of both are refused: no counter jumps."""
    high = (both(5000 + n, 9000 + n) for n in range(1000))
    low = (both(900 + n, 800 + n) for n in range(1000))
    turns = [high, low] if first == "high" else [low, high]
    accepted = []
    for number in range(60 * in_a_row):
        try:
            accepted.append((number, detector.detect(next(turns[number // in_a_row % 2]))))
        except (AnotherServer, CountersFell):
            continue

    assert sum(restarts.vllm for _, restarts in accepted) <= 1
    assert accepted[-1][0] <= 4 * in_a_row


def test_a_server_that_is_left_alone_at_a_shared_address_is_accepted_after_a_while(detector):
    """What it has counted is no growth: the last accepted page may have been the other's."""
    detector.detect(both(5000, 9000))
    refused(detector, both(900, 800), CountersFell)
    refused(detector, both(5001, 9001), AnotherServer)
    refused(detector, both(901, 801), AnotherServer, REFUSALS)

    assert detector.detect(both(902, 802)) == Restarts(vllm=True, is_foreign=True)
    assert detector.detect(both(903, 803)) == NOTHING


def test_a_server_that_answers_for_long_and_then_leaves_again_was_another_one(detector):
    """Its pages looked like a restart. The old server's counters must not count as growth."""
    detector.detect(both(5000, 9000))
    refused(detector, both(900, 800), CountersFell, WAITED)
    assert detector.detect(both(902, 802)).vllm

    refused(detector, both(5001, 9001), AnotherServer)
    refused(detector, both(903, 803), AnotherServer)
    refused(detector, both(5003, 9003), AnotherServer)


def test_counters_that_pass_their_old_values_after_a_restart_are_not_another_server(detector):
    detector.detect(both(500, 500))
    refused(detector, both(5, 5), CountersFell, WAITED)
    for tokens in range(10, 1000, 100):
        detector.detect(both(tokens, tokens + 150))


IDENTITIES = pytest.mark.parametrize(
    ("old", "new"),
    [({"start": 1.0}, {"start": 2.0}), ({"servers": {"a"}}, {"servers": {"b"}})],
    ids=["start", "id"],
)


@IDENTITIES
def test_another_identity_is_another_vllm_at_once_and_its_counters_began_anew_if_they_fell(
    old, new, detector
):
    detector.detect(both(1000, 2000, **old))

    assert detector.detect(both(5, 7, **new)) == Restarts(vllm=True)
    assert detector.detect(both(6, 8, **new)) == NOTHING


def test_a_new_id_alone_says_nothing_of_counters(detector):
    """As of another server behind the Service, whose counts are no growth."""
    detector.detect(both(1000, 2000, servers={"a"}))

    restarts = detector.detect(both(5000, 7000, servers={"b"}))

    assert restarts == Restarts(vllm=True, is_foreign=True)


def test_a_new_id_of_a_later_start_is_a_restart_whatever_it_has_counted(detector):
    detector.detect(page(counted(0, 10), start=1.0, servers={"a"}))

    assert detector.detect(page(counted(0, 90), start=2.0, servers={"b"})) == Restarts(vllm=True)


def test_in_a_directory_that_nobody_wiped_counters_go_on_beside_the_old_id(detector):
    detector.detect(both(1000, 2000, servers={"a"}))

    assert detector.detect(both(1005, 2005, servers={"a", "b"})) == NOTHING
    assert detector.detect(both(1010, 2010, servers={"a", "b", "c"})) == NOTHING
    assert detector.detect(both(1, 2, servers={"d"})) == Restarts(vllm=True)


def test_one_id_with_another_start_has_started_again(detector):
    """A launcher starts its server again, which has the launcher's id."""
    detector.detect(page(counted(0, 1000), start=1.0, servers={"a"}))

    assert detector.detect(page(counted(0, 9), start=2.0, servers={"a"})) == Restarts(vllm=True)


def test_counters_of_one_id_that_fall_started_again_in_the_same_process(detector):
    """Elastic expert parallelism, on a page of several API servers."""
    detector.detect(both(1000, 1000, servers={"a"}))
    refused(detector, both(5, 5, servers={"a"}), CountersFell, WAITED)

    restarts = detector.detect(both(9, 9, servers={"a"}))

    assert restarts == Restarts(engines=frozenset({ENGINE_0, ENGINE_1}))


@IDENTITIES
@pytest.mark.parametrize("counts", [(1000, 5000), (5000, 1000)], ids=["more", "fewer"])
@pytest.mark.parametrize("in_a_row", [1, 4])
def test_an_identity_that_comes_back_after_another_one_is_one_of_several_servers(
    old, new, counts, in_a_row, detector
):
    """No page of either is accepted, and at most the first change looks like a restart."""
    turns = [old, new] * 20
    accepted = []
    for turn, identity in enumerate(turns):
        for number in range(in_a_row):
            tokens = counts[turn % 2] + 10 * turn + number
            try:
                accepted.append((turn, detector.detect(page(counted(0, tokens), **identity))))
            except AnotherServer:
                assert not detector.is_in_doubt

    assert {turn for turn, _ in accepted} == {0, 1}
    assert sum(restarts.vllm for _, restarts in accepted) == 1


@IDENTITIES
def test_of_several_servers_the_one_that_stays_is_accepted_and_its_past_is_no_growth(
    old, new, detector
):
    detector.detect(page(counted(0, 5000), **old))
    detector.detect(page(counted(0, 900), **new))
    refused(detector, page(counted(0, 5001), **old), AnotherServer, REFUSALS)

    restarts = detector.detect(page(counted(0, 5002), **old))
    assert restarts == Restarts(vllm=True, is_foreign=True)
    assert detector.detect(page(counted(0, 5003), **old)) == NOTHING
    refused(detector, page(counted(0, 901), **new), AnotherServer)


def test_a_server_with_an_id_and_one_without_that_answer_in_turn_are_several(detector):
    detector.detect(page(counted(0, 5000), servers={"a"}))
    refused(detector, page(counted(0, 900)), CountersFell)

    refused(detector, page(counted(0, 5001), servers={"a"}), AnotherServer)


def test_a_page_that_names_other_engines_each_time_takes_no_memory(detector):
    for number in range(5000):
        detector.detect(page(counted(number, 1000)))

    assert len(detector._seen) <= 1024
