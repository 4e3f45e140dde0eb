"""What is sent, and how often it is tried: bounded by time and by what has happened."""

import socket
from collections import Counter

import pytest

from tests.scheduler.engine import Engine, is_at_least, make_scheduler
from tests.scheduler.test_other_plugins import wrap

SECONDS = 3


@pytest.fixture
def attempts(monkeypatch):
    """The times, by the plug-in's clock, at which it tried to connect."""
    made = []
    own = socket.socket

    class Counting(own):
        def connect(self, address):
            made.append(address)
            return super().connect(address)

    monkeypatch.setattr(socket, "socket", Counting)
    return made


def go_round(engine, seconds):
    """Rounds of an engine whose requests have ended, while their KV cache is sent."""
    rounds = 0
    until = engine.clock.at + seconds
    while engine.clock.at < until and engine.has_work():
        engine.step()
        rounds += 1
    return rounds


def ended(engine, name, **more):
    """A request that has ended, whose KV cache another engine still reads."""
    engine.add(name, max_tokens=1, **more)
    while engine.scheduler.get_num_unfinished_requests():
        engine.step()
    engine.run(3)  # with those that had been scheduled


@pytest.fixture
def sending(engine):
    """An engine with a request whose KV cache is being sent, which goes round all the time."""
    from tests.scheduler.connector import Connector

    made = engine()
    connector = Connector(made, delays=True)
    ended(made, "first")
    if not is_at_least(0, 24):  # it has no such rounds by itself
        made.scheduler.has_requests = lambda: bool(made.scheduler.requests)
    return made, connector


def test_an_engine_that_goes_round_without_work_sends_at_most_a_packet_a_second(sidecar, sending):
    engine, connector = sending
    sidecar.until(lambda: len(sidecar.engine().finished), 1)
    before = sidecar.packets
    assert go_round(engine, SECONDS) > 1000 * SECONDS / 2
    ended(engine, "second")
    sidecar.until(lambda: len(sidecar.engine().finished), 2)
    assert sidecar.packets - before <= SECONDS + 2

    connector.deliver()
    engine.run(3)
    assert not engine.has_work()


def test_it_connects_at_most_once_a_second_and_ever_less_often(sending, attempts):
    """Without a sidecar; the first attempt was at its start."""
    engine, _ = sending
    engine.idle_seconds = 0.02
    attempts.clear()
    go_round(engine, SECONDS)
    assert len(attempts) <= 2
    go_round(engine, 60)
    assert 3 <= len(attempts) <= 11


def test_without_a_sidecar_requests_one_at_a_time_cost_no_attempt_each(engine, attempts):
    engine = engine()
    attempts.clear()
    for number in range(200):
        engine.add(f"r{number}", max_tokens=10)
        engine.run()
    assert len(attempts) <= engine.clock.at - 1000


def test_a_request_alone_is_told_at_once_in_one_packet(engine, sidecar):
    """The engine may do nothing more for hours."""
    engine = engine()
    engine.add("first", max_tokens=10)
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 1)
    before = sidecar.packets
    for number in range(20):
        engine.add(f"r{number}", max_tokens=2)
        engine.run()
        sidecar.until(lambda: len(sidecar.engine().finished), number + 2)
    assert sidecar.packets - before <= 20 + 2 * 2  # the period's report takes two


def test_a_request_that_is_aborted_before_it_runs_is_told_at_once(engine, sidecar):
    engine = engine()
    engine.add("first", max_tokens=10)
    engine.run()
    engine.add("second")
    engine.abort(["second"])
    engine.run()
    sidecar.until(lambda: [one.outcome for one in sidecar.engine().finished], ["length", "aborted"])


def test_when_all_requests_are_aborted_all_are_told(engine, sidecar):
    engine = engine(running=1024)
    for number in range(1024):
        engine.add(f"r{number}", temperature=number % 200 / 100, prompt=1)
    engine.run(12)
    engine.abort()
    engine.run()
    expected = Counter(number % 200 for number in range(1024))
    sidecar.until(lambda: sidecar.engine().ended_by_temperature, expected)

    def told():
        engine.clock.at += 1
        engine.add(
            "later", temperature=2, max_tokens=2
        )  # with it goes what the socket was full for
        engine.run()
        return {one.temperature for one in sidecar.engine().finished}

    sidecar.until(told, {*expected, 200})
    assert sidecar.engine().lost == 0
    sidecar.until(lambda: sidecar.engine().totals, engine.told.counts.numbers)


def test_a_fork_sends_nothing_and_leaves_the_connection_alone(engine, sidecar):
    """Workers are forked from the engine core where the method is fork."""
    import os

    engine = engine()
    engine.add("first", max_tokens=10)
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 1)
    child = os.fork()
    if child == 0:
        engine.add("child", max_tokens=10)
        engine.run()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    engine.add("second", max_tokens=10)
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 2)
    assert (sidecar.engines, sidecar.connections) == (1, 1)


@pytest.fixture
def unobserved(request, plugin, installed, clock, monkeypatch):
    """An engine in which the plug-in has refused, or failed."""
    if request.param == "refused":
        wrap("update_from_output", [], tells=False)
    installed()
    made = Engine(make_scheduler(), clock=clock)
    if request.param == "disabled":
        made.add("before", max_tokens=10)
        monkeypatch.setattr(plugin.Observer, "note", lambda *_: 1 / 0)
        made.run()
    return made


@pytest.mark.parametrize("unobserved", ["refused", "disabled"], indirect=True)
def test_a_sidecar_that_comes_late_or_back_knows_that_nothing_is_observed(
    unobserved, path, attempts, request
):
    """Once it has refused or failed, nothing else would tell."""
    from tests.scheduler.known import Sidecar

    state = request.node.callspec.params["unobserved"]
    sidecar = Sidecar(path)

    def go_on(seconds=12):
        unobserved.clock.at += seconds
        unobserved.add(f"r{unobserved.clock.at}", max_tokens=2)
        unobserved.run()

    go_on()
    sidecar.until(lambda: (sidecar.engines, sidecar.engine().state), (1, state))
    reason = sidecar.engine().reason
    assert reason

    sidecar.close()
    unobserved.clock.at += 12
    attempts.clear()
    for _ in range(30):
        go_on(0.5)
    assert len(attempts) <= 2

    sidecar.live_again()
    packets, connections = sidecar.packets, sidecar.connections
    once_more = (packets + 1, connections + 1)
    go_on()
    sidecar.until(lambda: (sidecar.packets, sidecar.connections), once_more)
    assert (sidecar.engine().state, sidecar.engine().reason) == (state, reason)
    for _ in range(5):
        go_on()
    assert (sidecar.packets, sidecar.connections) == once_more
    sidecar.close()
