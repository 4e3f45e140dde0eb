"""``demo``: the sidecar on a simulated vLLM with traffic, of which a story is told.

It pays, hot traffic comes and loses, vLLM restarts with the remedy, and hot traffic gains.
"""

import argparse
import asyncio
import itertools
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sidecar.app import running
from sidecar.commands.arguments import add_duration
from sidecar.commands.waiting import stop_on_signals, stopped
from sidecar.requests.plugin import LOOP_TOKENS
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainEndings, PlainStepTimes
from sidecar.settings.groups import Plugin
from specdec_tools.demo.scheduler import LOOP_BEGINS, SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from specdec_tools.demo.traffic import COLD_HOT_COLD, HOT, Mix, Traffic, TrafficOptions

HELP = "run the sidecar on a simulated vLLM with traffic, to try it out"
_TURN = 60.0  # seconds of each kind of traffic with --fixed
_MANY = 1_000_000_000  # requests: the demo ends by time or by hand
_CONTEXTS = (500.0, 50_000.0)  # tokens, for which the plain steps hold
_DRIFT = 0.005  # of the plain steps
_MEASURED = 10_000  # requests a temperature, of which a baseline would know how they end
# Drafting costs time here, so cold traffic gains from it and hot traffic loses; so does structured
# output. Some replies end badly, as they would without speculation.
_GAINING = SimulatorOptions(
    hot_acceptance=0.42,
    draft_seconds_per_token=0.006,
    structured_acceptance=0.83,
    loop_share=0.15,
    empty_share=0.01,
)
_FIXED = replace(
    _GAINING, draft_sample_method="probabilistic", hot_acceptance=_GAINING.cold_acceptance
)
_LOSING = replace(_GAINING, cold_acceptance=0.65, hot_acceptance=0.3)


@dataclass(frozen=True, slots=True)
class _Act:
    """What is said when it begins, the traffic, how vLLM speculates, and for how many seconds."""

    said: str
    mix: Mix
    options: SimulatorOptions
    seconds: float


_COLD: Mix = {0.0: 1.0}  # temperature -> weight
_WARM: Mix = {0.0: 3.0, 1.0: 7.0}
_STORY: Sequence[_Act] = (
    _Act("Traffic at T 0: speculation pays.", _COLD, _GAINING, 35.0),
    _Act(
        "Traffic at T 1 comes: it will lose there, and the page says what to change.",
        _WARM,
        _GAINING,
        50.0,
    ),
    _Act("vLLM restarts with that remedy: T 1 will gain, too.", _WARM, _FIXED, 155.0),
)
_TOLD = "Within two minutes it pays, hot traffic loses, and the remedy is applied; then again."
_STAYS_LOW = "The acceptance rate stays below 0.5: verdicts turn net_negative and alerts fire."
_STAYS_HIGH = (
    "The draft samples its tokens, so the acceptance rate stays high at every temperature."
)
_WHERE = """
specdec-sidecar demo: a simulated vLLM with speculative decoding, and traffic for it.

  page        http://{address}/
  metrics     http://{address}/metrics
  status      http://{address}/api/v1/status
  "vLLM"      {vllm}/metrics, with the plug-in loaded

Numbers appear within seconds. {course} Stop it with Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``demo``."""
    add_duration(parser)

    course = parser.add_mutually_exclusive_group()
    course.add_argument(
        "--losing", action="store_true", help="keep acceptance below 0.5, so that alerts fire"
    )
    course.add_argument(
        "--fixed",
        action="store_true",
        help="sample the draft's tokens, so that hot traffic gains too",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 when stopped.

    Raises:
        ListenError: it cannot listen on its address.
    """
    story = _STORY
    course = _TOLD
    if arguments.losing:
        story = (_Act("", HOT, _LOSING, math.inf),)
        course = _STAYS_LOW
    elif arguments.fixed:
        story = tuple(_Act("", mix, _FIXED, _TURN) for mix in COLD_HOT_COLD)
        course = _STAYS_HIGH

    asyncio.run(_run(settings, arguments.duration, story, course))
    return 0


async def _run(
    settings: Settings, seconds: float | None, story: Sequence[_Act], course: str
) -> None:
    stop = stop_on_signals()
    options = story[0].options
    mixes = tuple(act.mix for act in story)
    traffic_options = TrafficOptions(mixes, math.inf, max_requests=_MANY)
    with tempfile.TemporaryDirectory(prefix="specdec-demo-") as folder:
        socket = Path(folder) / "plugin.sock"
        async with SimulatedVllm(options, plugin_socket=socket) as vllm:
            traffic = Traffic(vllm, traffic_options)
            watching = {
                "vllm_url": vllm.url,
                "plugin": Plugin(socket=socket),
                "plain_steps": {options.model_name: _plain_steps(options)},
                "plain_endings": {options.model_name: _plain_endings(options, traffic_options)},
            }
            async with running(settings.model_copy(update=watching)) as address:
                print(
                    _WHERE.format(address=address.local, vllm=vllm.url, course=course), flush=True
                )
                tasks = [
                    asyncio.create_task(traffic.run()),
                    asyncio.create_task(_tell(story, vllm, traffic)),
                ]
                await stopped(stop, seconds)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    print(f"{traffic.completed} requests completed, {traffic.failed} failed")


async def _tell(story: Sequence[_Act], vllm: SimulatedVllm, traffic: Traffic) -> None:
    """Tells the story again and again; one whose only act has no end stays there."""
    for act in itertools.cycle(story):
        traffic.mix = act.mix
        if act.said:
            print(f"{datetime.now(UTC):%H:%M:%S} UTC  {act.said}", flush=True)
        if act.options is not vllm.options:
            await vllm.restart(act.options)
        await asyncio.sleep(act.seconds)


def _plain_steps(options: SimulatorOptions) -> PlainStepTimes:
    """What a baseline of the simulated vLLM without speculation would measure.

    Calculated from its options: a step grows with the requests and with what it prefills, and does
    not depend on the context.
    """
    loads = (1.0, float(options.max_num_seqs))
    return PlainStepTimes(
        running=loads,
        seconds=tuple(
            options.step_seconds + requests * options.step_seconds_per_request for requests in loads
        ),
        context=_CONTEXTS[0],
        contexts=_CONTEXTS,
        context_seconds=(0.0,) * len(loads),
        prefill_seconds=options.prefill_seconds_per_token,
        drift=_DRIFT,
    )


def _plain_endings(options: SimulatorOptions, traffic: TrafficOptions) -> dict[float, PlainEndings]:
    """How the replies of the simulated vLLM without speculation would end, by temperature.

    Calculated from its options, as if many requests had been measured. An output shows its loop
    once that is long enough.
    """
    lengths = range(traffic.min_tokens, traffic.max_tokens + 1)
    long_enough = [length for length in lengths if length >= LOOP_BEGINS + LOOP_TOKENS]
    looping = options.loop_share * len(long_enough) / len(lengths)

    empty = round(_MEASURED * options.empty_share)
    others = _MEASURED - empty
    temperatures = {temperature for mix in traffic.mixes for temperature in mix}
    found = {}
    for temperature in temperatures:
        loops = 0 if temperature else round(others * looping)
        found[temperature] = PlainEndings(normal=others - loops, loop=loops, empty=empty)
    return found
