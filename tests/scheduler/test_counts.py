"""What requests draft, by temperature and by request, is what vLLM counts."""

from collections import Counter

import pytest

from tests.scheduler.engine import Engine, make_scheduler, sampling

TEMPERATURES = (0, 0.3, 0.7, 1.0)


def random_traffic(engine, *, requests=120):
    """Requests that come, wait, are preempted for lack of room, are aborted, and end."""
    rng = engine.random
    made = {}
    while len(made) < requests or engine.has_work():
        if len(made) < requests and rng.random() < 0.35:
            name = f"r{len(made)}"
            temperature = rng.choice(TEMPERATURES)
            limit = rng.randint(1, 120)
            prompt = rng.randint(4, 100)
            made[name] = engine.add(name, temperature=temperature, max_tokens=limit, prompt=prompt)
        if engine.scheduler.requests and rng.random() < 0.04:
            engine.abort([rng.choice(list(engine.scheduler.requests))])
        if engine.has_work():
            engine.step()
    return made


def equal_to_the_token(sidecar, engine):
    """Waits until what the sidecar knows is what the engine's own counters say, by temperature."""
    told = engine.told
    expected = {key: row.numbers for key, row in told.by_temperature.items()}
    sidecar.until(lambda: sidecar.engine().by_temperature, expected)
    assert sidecar.engine().totals == told.counts.numbers


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_random_traffic_is_counted_to_the_token(runner, engine, sidecar):
    """To model runner V2, a preempted request is a new one."""
    engine = engine(blocks=40, batched=128)
    engine.scheduler.use_v2_model_runner = runner == "V2"
    made = random_traffic(engine)
    engine.add("last", max_tokens=1)  # what ended in the last round is told with it
    engine.run()

    equal_to_the_token(sidecar, engine)
    sidecar.until(lambda: len(sidecar.engine().finished), len(made) + 1)
    assert sidecar.engine().lost == 0
    assert sidecar.is_sound

    asked = Counter(round(100 * one.sampling_params.temperature) for one in made.values())
    asked[70] += 1
    assert sidecar.engine().ended_by_temperature == asked


def test_each_request_is_counted_to_the_token(engine, sidecar):
    """By what the client got, and what the model drafted and accepted for it."""
    engine = engine()
    for number in range(30):
        name = f"r{number}"
        engine.add(name, temperature=number % 5 / 10, max_tokens=5 + 7 * number % 90)
        engine.run(steps=number % 4)
    engine.run()

    def request(name, number):
        counts = (
            engine.told.by_request[name].numbers if name in engine.told.by_request else (0,) * 3
        )
        return number % 5 * 10, engine.told.outputs[name], *counts

    expected = Counter(request(f"r{number}", number) for number in range(30))

    def reported():
        return Counter(
            (one.temperature, one.output_tokens, one.drafts, one.draft_tokens, one.accepted_tokens)
            for one in sidecar.engine().finished
        )

    sidecar.until(reported, expected)


def test_an_engine_without_speculation_has_no_drafts_and_all_its_requests(engine, sidecar):
    engine = engine(k=0)
    for number in range(5):
        engine.add(f"r{number}", max_tokens=10)
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 5)
    assert sidecar.engine().totals == (0, 0, 0)
    assert sidecar.engine().steps().tokens == 45


def test_a_sidecar_that_comes_late_or_back_knows_everything(plugin, installed, path, clock):
    from tests.scheduler.known import Sidecar

    installed()
    engine = Engine(make_scheduler(), clock=clock)

    def work(prefix):
        for number in range(10):
            engine.add(f"{prefix}{number}", parameters=sampling(temperature=0.4, max_tokens=20))
        engine.run()

    work("a")
    clock.at += 60
    sidecar = Sidecar(path)
    work("b")
    equal_to_the_token(sidecar, engine)
    sidecar.close()
    work("c")
    clock.at += 60
    sidecar.live_again()
    work("d")
    equal_to_the_token(sidecar, engine)
    assert sidecar.engine().ended_by_temperature == {40: 40}
    sidecar.close()
