"""The plug-in in a real vLLM, checked by a receiver that shares no code with the sidecar's."""

import asyncio
import os
import random
import socket
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from lab.installation import installed
from tests.demo.http_traffic import exchange
from tests.lab.conftest import counters, page_until, settled, sidecar
from tests.lab.engine_traffic import compare, row, traffic
from tests.requests.packets import FINISHED, HELLO, REPORT, finishing, packet
from tests.requests.plain_receiver import COUNTS, PlainReceiver

pytestmark = pytest.mark.lab
TESTS = Path(__file__).parent.parent
SERVED = os.environ.get("SERVE", "draft_model").split()  # arguments of lab/serve
FAULT = """
_own, _calls = Observer.after_step, [0]
def after_step(self, *args, **kwargs):
    _calls[0] += 1
    if _calls[0] == 40:
        raise RuntimeError("a fault of ours")
    return _own(self, *args, **kwargs)
Observer.after_step = after_step
"""


@pytest.fixture
def plugin(lab, folder):
    """Makes a server with the plug-in, and its receiver; ``options`` are vLLM's."""
    receiver = PlainReceiver(folder / "run" / "plugin.sock")

    def make(*options, **plugin):
        return lab(*SERVED, *options, folder=folder, **plugin), receiver

    yield make
    receiver.die()


WAIT = 60.0  # seconds: vLLM may be slow on this machine


async def equal(receiver, url, sent=None):
    """Waits until the plug-in's totals are vLLM's counters.

    With what was ``sent``, all its tables must be, too.
    """
    theirs = await counters(url)
    await asyncio.to_thread(receiver.until, lambda: receiver.total, theirs, WAIT)
    if sent is not None:
        await asyncio.to_thread(receiver.until, lambda: compare(receiver, sent, theirs), "", WAIT)


def answered(sent):
    return not sent.unanswered and {status for _, status in sent.statuses} == {200, 400}


async def replies(url):
    """What vLLM replies at temperature 0."""
    body = {"model": "lab", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    prompts = [{"prompt": f"verify {number}"} for number in range(6)]
    async with aiohttp.ClientSession() as http:
        answers = [
            await exchange(http, f"{url}/v1/completions", body | prompt) for prompt in prompts
        ]
    return [answer["choices"][0]["text"] for answer in answers]


async def test_every_kind_of_request_is_counted_to_the_token_and_answered_as_without_it(
    plugin, lab
):
    """Found twice, it counts once.

    With ``-s`` it prints a row of the table in docs/measurements/plugin.md.
    """
    vllm, receiver = plugin(copies=2)
    await vllm.start()
    sent = await traffic(vllm.url)
    try:
        assert answered(sent)
        await equal(receiver, vllm.url, sent)
    finally:
        print(*row(receiver, sent, await counters(vllm.url), " ".join(SERVED)), sep="\n")  # noqa: T201 - as said
    with_it = await replies(vllm.url)
    vllm.kill()
    plain = lab(*SERVED)
    await plain.start()
    assert await replies(plain.url) == with_it


async def test_each_request_is_counted_as_vllm_tells_its_client(plugin):
    """``--per-request-spec-decode-metrics`` is in vLLM from 0.29 on."""
    vllm, receiver = plugin("--per-request-spec-decode-metrics", "summary")
    await vllm.start()
    bodies = [
        {
            "model": "lab",
            "messages": [{"role": "user", "content": f"verify number {number}"}],
            "max_tokens": 10 + 7 * number,
            "temperature": number % 3 / 2,
            "ignore_eos": True,
        }
        for number in range(12)
    ]
    async with aiohttp.ClientSession() as http:
        asked = [exchange(http, f"{vllm.url}/v1/chat/completions", body) for body in bodies]
        answers = await asyncio.gather(*asked)

    told = Counter()
    for body, answer in zip(bodies, answers, strict=True):
        numbers = answer["metrics"]["speculative_decoding"]
        names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
        tokens = answer["usage"]["completion_tokens"]
        told[round(100 * body["temperature"]), tokens, *(numbers[name] for name in names)] += 1

    def reported():
        names = ("temperature", "output_tokens", *COUNTS)
        return Counter(tuple(done[name] for name in names) for done in receiver.only.done)

    await asyncio.to_thread(receiver.until, reported, told, WAIT)


@pytest.mark.parametrize(
    "scheduler", ["lab_schedulers.Cooperative", "lab_schedulers.ByHelper", "dynamo"]
)
async def test_a_scheduler_that_calls_vllms_methods_is_counted_to_the_token(scheduler, plugin):
    """With ``dynamo`` it is the real one of NVIDIA Dynamo; vLLM's own are in the test above."""
    if scheduler == "dynamo" and not installed().dynamo.is_dir():
        pytest.skip("this vLLM is too old for it")
    vllm, receiver = plugin("--scheduler", scheduler)
    await vllm.start()
    assert (receiver.only.state, receiver.only.hello["own"]) == (
        "observing",
        ["update_from_output"],
    )
    sent = await traffic(vllm.url)
    assert answered(sent)
    await equal(receiver, vllm.url, sent)


async def test_a_scheduler_that_replaces_vllms_methods_is_named_and_tells_nothing(plugin):
    """So the sidecar has no growth to compare, and a method to name."""
    vllm, receiver = plugin("--scheduler", "lab_schedulers.Replacing")
    await vllm.start()
    assert answered(await traffic(vllm.url))
    assert receiver.only.hello["own"] == ["update_from_output"]
    assert receiver.only.reports == 0


async def test_killed_and_hanging_sidecars_cost_no_request_and_no_total(observed):
    """Totals heal: afterwards they are equal to the counters of vLLM."""
    await observed.start()
    assert answered(await traffic(observed.url)), "with no sidecar at all"
    receiver = PlainReceiver(observed.socket)
    assert answered(await traffic(observed.url))
    await equal(receiver, observed.url)

    ending = asyncio.Event()

    async def send():
        while not ending.is_set():
            assert answered(await traffic(observed.url))

    sending = asyncio.create_task(send())
    for _ in range(20):  # killed under load
        receiver.die()
        await asyncio.sleep(0.3)
        receiver.live_again()
        await asyncio.sleep(0.3)
    ending.set()
    await sending
    # An idle engine notices a new receiver with its next step.
    assert answered(await traffic(observed.url))
    await equal(receiver, observed.url)

    receiver.die()  # while the engine is idle; then one hangs, that accepts and never reads
    observed.socket.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hanging:
        hanging.bind(str(observed.socket))
        hanging.listen()
        assert answered(await traffic(observed.url))
    receiver.live_again()
    assert answered(await traffic(observed.url))
    await equal(receiver, observed.url)
    receiver.die()


STRANGE = (
    b"?",
    b"[" * 60_000,
    b'{"v": 9}',
    packet(report=REPORT),
    packet(hello={**HELLO, "engine": 7}, report=finishing(*[FINISHED] * 64)),
    packet(hello={**HELLO, "model": "another", "start": "60"}, report=REPORT),
    # It claims to be the engine.
    packet(hello={**HELLO, "model": "lab", "start": "61"}, report=REPORT),
    packet(hello={**HELLO, "model": "lab", "start": "62", "state": "disabled"}),
)


def flood(path, ending):
    """Opens connections and sends all of it at random, until it shall end."""
    rng, held = random.Random(1), []
    while not ending.wait(0.002):
        held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
        with suppress(OSError):  # the sidecar is not that quick, or has had enough
            held[-1].connect(str(path))
            for _ in range(rng.choice((0, 0, 50))):
                held[-1].send(rng.choice(STRANGE))
        if len(held) > 60:
            held.pop(rng.randrange(len(held))).close()
    for link in held:
        link.close()


async def test_a_stranger_at_the_socket_costs_no_request_and_no_number(observed):
    await observed.start()
    before, ending = await replies(observed.url), threading.Event()
    async with sidecar(observed) as ours:
        flooding = asyncio.create_task(asyncio.to_thread(flood, observed.socket, ending))
        sent = await traffic(observed.url)
        assert await replies(observed.url) == before
        ending.set()
        await flooding
        theirs, page = await settled(observed, ours)
        await page_until(ours, lambda page: page.value("specdec_request_coverage_ratio") == 1)
    assert answered(sent)
    for name in COUNTS:
        assert page.sum(f"specdec_{name}_total") == theirs.value(
            f"vllm:spec_decode_num_{name}_total"
        ), name
    for reason in ("malformed", "other_engine", "too_many_connections"):
        assert page.value("specdec_request_events_dropped_total", reason=reason) > 0, reason


async def test_a_fault_of_ours_disables_the_plugin_and_leaves_vllm_as_it_is(plugin):
    vllm, receiver = plugin(fault=FAULT)
    await vllm.start()
    assert answered(await traffic(vllm.url))
    await asyncio.to_thread(receiver.until, lambda: receiver.only.state, "disabled", WAIT)
