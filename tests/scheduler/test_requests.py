"""Requests of every kind, also such as other plug-ins make of them."""

import pytest

from tests.scheduler.engine import (
    Engine,
    ModelRunnerOutput,
    call,
    is_at_least,
    make_request,
    make_scheduler,
    pooling_request,
    sampling,
    torch,
)
from tests.scheduler.test_counts import equal_to_the_token


def alone(engine, request, *, aborts=False):
    """A request beside an ordinary one, both to their ends."""
    engine.scheduler.add_request(request)
    engine.add("ordinary", temperature=0.2, max_tokens=12)
    engine.run(6)
    if aborts:
        engine.abort([request.request_id])
    engine.run()


def test_requests_of_one_token_are_told_with_theirs(engine, sidecar):
    engine = engine()
    for number in range(5):
        engine.add(f"r{number}", max_tokens=1)
    engine.run()
    sidecar.until(lambda: [one.output_tokens for one in sidecar.engine().finished], [1] * 5)
    assert sidecar.engine().ended_by_temperature == {70: 5}


def test_each_of_several_choices_counts_as_one(engine, sidecar):
    """The API server makes a request of each."""
    engine = engine()
    for number in range(2):
        engine.add(f"{number}_r", parameters=sampling(n=2, seed=number, max_tokens=20))
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 2)
    equal_to_the_token(sidecar, engine)


def test_a_request_that_generates_nothing_is_none_of_ours(installed, sidecar, clock):
    plugin = installed()
    scheduler = make_scheduler(k=0)
    scheduler.add_request(pooling_request("pooled"))
    output = scheduler.schedule()
    result = call(
        ModelRunnerOutput, req_ids=["pooled"], req_id_to_index={"pooled": 0}, sampled_token_ids=[],
        logprobs=None, prompt_logprobs_dict={}, pooler_output=[torch.zeros(3)],
        num_nans_in_logits={},
    )  # fmt: skip
    scheduler.update_from_output(output, result)
    assert not scheduler.requests

    engine = Engine(scheduler, clock=clock, k=0)
    engine.add("after", max_tokens=3)
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 1)
    assert (sidecar.engine().state, plugin.FORMAT) == ("observing", plugin.FORMAT)


ODD = {
    "the lowest temperature": {"temperature": 1e-300},
    "the highest temperature": {"temperature": 2},
    "a flag as its temperature": {"temperature": True},
    "an output without a limit": {"max_tokens": 10**12},
    "arguments of one's own": {"extra_args": {"a": 1}},
    "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.2},
    "filters": {"top_k": 5, "top_p": 0.5},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_parameters_disable_nothing(name, engine, sidecar):
    engine = engine()
    request = make_request("odd", parameters=sampling(**ODD[name]))
    alone(engine, request, aborts=True)
    sidecar.until(lambda: len(sidecar.engine().finished), 2)
    assert sidecar.engine().state == "observing"
    sidecar.until(lambda: sidecar.engine().totals, engine.told.counts.numbers)


@pytest.mark.parametrize("value", [None, "1", 1j, float("nan")])
@pytest.mark.parametrize(
    "parameter", ["temperature", "top_k", "top_p", "presence_penalty", "min_p"]
)
def test_parameters_that_another_plugin_has_changed_disable_nothing(
    parameter, value, engine, sidecar
):
    engine = engine()
    request = make_request("odd")
    setattr(request.sampling_params, parameter, value)
    alone(engine, request)
    sidecar.until(lambda: len(sidecar.engine().finished), 2)
    assert sidecar.engine().state == "observing"
    sidecar.until(lambda: sidecar.engine().totals, engine.told.counts.numbers)


NAMES = ["other", "other'", "a" * 100_000, "\ud800", "x\0y", "</script>", "ä" * 300, "1", "{}", '"']


def adapter(name, number=1):
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=name, lora_int_id=number, lora_path="/x")


@pytest.mark.parametrize("name", NAMES)
def test_adapters_of_any_name_are_told_and_none_is_taken_for_all_others(name, engine, sidecar):
    engine = engine()
    engine.add("r", max_tokens=4, lora_request=adapter(name))
    engine.add("plain", max_tokens=4)
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 2)
    rows = sidecar.engine().by_adapter
    assert (rows.pop(""), sum(rows.values())) == (1, 1)
    assert None not in rows


@pytest.fixture
def session(engine):
    """A streaming session; ``turn`` is more input for it, at another temperature."""
    made = engine()
    if "resumable" not in make_request.__globals__["Request"].__init__.__annotations__:
        pytest.skip("this vLLM has none")
    # A turn that ends while its next step is computed is counted as waiting twice, or scheduled
    # as running: 0.16, 0.20.2 and 0.27.1 do, 0.32 does not.
    if made.ahead and not is_at_least(0, 32):
        pytest.skip("this vLLM's own sessions break with async scheduling")

    def turn(temperature, *, final=False, max_tokens=9):
        parameters = sampling(temperature=temperature, max_tokens=max_tokens)
        request = make_request("session", parameters=parameters, resumable=not final)
        made.scheduler.add_request(request)
        made.run(12)

    return made, turn


def test_a_streaming_session_is_told_with_the_drafts_of_all_its_turns(sidecar, session):
    """Its client is part of its time."""
    engine, turn = session
    for temperature in (0.7, 0.2, 0.7):
        turn(temperature)
        engine.clock.at += 5
    turn(0.7, final=True)
    engine.run()

    equal_to_the_token(sidecar, engine)
    sidecar.until(lambda: len(sidecar.engine().finished) > 0)
    finished = sidecar.engine().finished
    totals = tuple(
        sum(getattr(one, name) for one in finished)
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert totals == engine.told.by_request["session"].numbers
    # Its client is part of its time, and vLLM forgets the output of a turn: both are unknown.
    assert [(one.output_tokens, one.last_token) for one in finished] == [(None, None)]


def test_turns_that_wait_while_a_session_generates_are_told_too(sidecar, session):
    engine, turn = session
    engine.run = lambda steps=0: None  # all turns are queued at once
    for temperature in (0.7, 0.7, 0.7):
        turn(temperature, max_tokens=7)
    turn(0.7, final=True)
    del engine.run
    engine.run()

    equal_to_the_token(sidecar, engine)
    sidecar.until(lambda: sum(one.drafts for one in sidecar.engine().finished) > 0)
    finished = sidecar.engine().finished
    assert sum(one.drafts for one in finished) == engine.told.by_request["session"].drafts


@pytest.mark.parametrize("version", [b"0.32.0", None, "", 5, object(), "x" * 70_000, "0\n"])
def test_a_version_of_any_kind_disables_nothing(version, installed, sidecar, clock):
    installed(version)
    engine = Engine(make_scheduler(), clock=clock)
    engine.add("r", max_tokens=10)
    engine.run()
    sidecar.until(lambda: len(sidecar.engine().finished), 1)
    told = sidecar.engine().vllm
    assert told is None or len(told) <= 64


def test_vllms_own_exceptions_pass_and_change_nothing(engine, sidecar):
    engine = engine()
    engine.add("r", max_tokens=10)
    own = engine.update

    def broken(output, result):
        result.req_id_to_index.clear()
        return own(output, result)

    engine.update = broken
    with pytest.raises(KeyError):
        engine.run()
    sidecar.until(lambda: sidecar.engine().state, "observing")


def test_nothing_of_a_request_lives_on(engine, sidecar):
    import gc
    import weakref

    engine = engine()
    gc.collect()
    gc.disable()
    try:
        references = [weakref.ref(engine.add(f"r{number}", max_tokens=5)) for number in range(50)]
        engine.run()
        engine.add("last", max_tokens=2)
        engine.run()
        assert not any(reference() for reference in references)
    finally:
        gc.enable()
