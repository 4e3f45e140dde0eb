"""A pause, an idle engine and a round that schedules nothing are no steps."""

import pytest

STEP = 0.02  # seconds


def decode(engine, *, requests=4, steps=40):
    """Requests that have all decoded for some steps."""
    for number in range(requests):
        # Steps of one that was aborted may still be computed.
        engine.add(f"r{number}-{engine.told.steps}", max_tokens=400)
    engine.run(steps)


def check_steps(sidecar, engine, *, decodes=4, at_least=50):
    """Ends all, and checks that a step takes as long as the model."""
    engine.run(30)
    engine.abort()
    engine.run()
    sidecar.until(lambda: sidecar.engine().steps(decodes).steps >= at_least)
    assert sidecar.engine().steps().seconds_per_step == pytest.approx(STEP)


@pytest.mark.parametrize("seconds", [0.5, 10, 3600])
def test_a_pause_that_keeps_requests_is_part_of_no_step(seconds, engine, sidecar, clock):
    engine = engine(seconds=STEP)
    decode(engine)
    engine.pause("keep")
    engine.run()  # what was begun is computed
    clock.at += seconds
    engine.resume()
    check_steps(sidecar, engine)


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_a_pause_that_ends_requests_is_part_of_no_step(mode, engine, sidecar, clock):
    engine = engine(seconds=STEP)
    decode(engine)
    engine.pause(mode)
    engine.add("later", max_tokens=50)
    engine.run()
    clock.at += 10
    engine.resume()
    decode(engine)
    check_steps(sidecar, engine)


def test_a_call_that_stops_the_engine_is_part_of_no_step(engine, sidecar, clock):
    """Such as loading an adapter, or new weights, on all workers."""
    engine = engine(seconds=STEP)
    decode(engine)
    for _ in range(5):
        clock.at += 2
        engine.run(4)
    check_steps(sidecar, engine)


def test_an_idle_engine_makes_no_step(engine, sidecar, clock):
    engine = engine(seconds=STEP)
    for number in range(8):
        engine.add(f"a{number}", max_tokens=60)
        engine.run()
        clock.at += 30
    decode(engine)
    check_steps(sidecar, engine)


def test_requests_that_wait_for_their_kv_cache_make_no_step(engine, sidecar, clock):
    """The engine goes round until another has sent it."""
    from tests.scheduler.connector import Connector

    engine = engine(seconds=STEP)
    connector = Connector(engine, loads=16)
    for number in range(4):
        engine.add(f"r{number}", prompt=33, max_tokens=400)
    for _ in range(500):
        engine.step()
    connector.deliver()
    engine.run(40)
    check_steps(sidecar, engine)
