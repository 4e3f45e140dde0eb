"""``fidelity``: do two servers put out the same text, one of them with speculation?

Prompts and outputs are neither printed nor kept: differences are named by the number of the prompt
and the position of the token, both from 1.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Literal

from sidecar.commands.arguments import base_url, duration, number_up_to, share_of_one, whole
from sidecar.commands.load.client import Client
from sidecar.commands.load.workload import (
    MOST_AT_ONCE,
    RequestOptions,
    add_request_arguments,
    request_options,
)
from sidecar.commands.outputs.greedy import NEAR_TIE, GreedyComparison, Parting, compare_greedy
from sidecar.commands.outputs.replies import Tokens, greedy_replies, sampled_replies
from sidecar.commands.outputs.sampled import SampledComparison, compare_sampled, samples_for
from sidecar.commands.waiting import stop_on_signals, unless_stopped
from sidecar.errors import MeasurementError
from sidecar.settings import Settings

HELP = "test whether two servers' outputs are the same: greedy, and sampled as a distribution"
_MOST: Final = 10_000
_SHOWN: Final = 10  # differences

FidelityVerdict = Literal["no_difference_found", "different", "undecided"]
_CODES: Final[Mapping[FidelityVerdict, int]] = {
    "no_difference_found": 0,
    "different": 1,
    "undecided": 3,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``fidelity``."""
    tested = "the vLLM to test, such as one that speculates (default: the setting vllm_url)"
    parser.add_argument("--url", type=base_url, help=tested)

    reference = "the vLLM to compare it with: the same model without speculation"
    parser.add_argument("--against", type=base_url, required=True, metavar="URL", help=reference)
    parser.add_argument(
        "--mode",
        choices=("both", "greedy", "sampled"),
        default="both",
        help="which outputs to test (default: both)",
    )

    temperature = number_up_to(2.0, "a temperature above 0 and at most 2")
    parser.add_argument(
        "--temperature",
        type=temperature,
        default=1.0,
        metavar="T",
        help="of the sampled outputs (default: 1)",
    )

    samples = "sampled outputs of each prompt and server (default: 200)"
    parser.add_argument("--samples", type=whole(10**6), default=200, metavar="N", help=samples)

    drafts = "draft tokens per step of the server to test (default: 3)"
    parser.add_argument("--tokens", type=whole(100), default=3, metavar="K", help=drafts)

    difference = "the change of a token's probability that must be noticed (default: 5%%)"
    parser.add_argument(
        "--difference", type=share_of_one, default=0.05, metavar="SHARE", help=difference
    )

    near_tie = f"in nat, the preference up to which numerics explain a difference ({NEAR_TIE})"
    nats = number_up_to(100.0, "a number above 0")
    parser.add_argument("--near-tie", type=nats, default=NEAR_TIE, metavar="NAT", help=near_tie)

    concurrency = "requests in flight on each server (default: 16)"
    parser.add_argument(
        "--concurrency", type=whole(MOST_AT_ONCE), default=16, metavar="N", help=concurrency
    )

    end = "give up after this long (default: 30m)"
    parser.add_argument("--duration", type=duration, default=1800.0, metavar="TIME", help=end)
    parser.add_argument("--json", action="store_true", help="print JSON rather than text")
    add_request_arguments(parser)
    parser.set_defaults(endpoint="completions")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if no difference was found, 1 if one was, 3 if that cannot be told.

    Raises:
        InputError: ``--prompts`` cannot be used.
        MeasurementError: a server does not answer, or not in time.
        SettingsError: the API key cannot be used.
    """
    options = FidelityOptions(
        tested=arguments.url or settings.vllm_url,
        reference=arguments.against,
        requests=request_options(arguments, settings),
        mode=arguments.mode,
        temperature=arguments.temperature,
        samples=arguments.samples,
        draft_tokens=arguments.tokens,
        near_tie=arguments.near_tie,
        concurrency=arguments.concurrency,
    )
    fidelity = asyncio.run(_measured(options, arguments.duration))
    verdict = fidelity.verdict(arguments.difference)
    if arguments.json:
        document = {"verdict": verdict, **asdict(fidelity)}
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(_text(fidelity, arguments.difference)))

    return _CODES[verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityOptions:
    """What is asked of the two servers; ``mode`` is both, greedy or sampled."""

    tested: str
    reference: str
    requests: RequestOptions
    mode: str
    temperature: float
    samples: int
    draft_tokens: int
    near_tie: float
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """What was compared; None for what was not.

    ``control`` compares the reference's greedy outputs with its own for one request at a time.
    """

    greedy: GreedyComparison | None
    control: GreedyComparison | None
    sampled: SampledComparison | None
    temperature: float

    def verdict(self, difference: float) -> FidelityVerdict:
        """The verdict if a change of a probability by ``difference`` has to be noticed."""
        greedy = self.greedy
        control = self.control
        sampled = self.sampled
        if control is not None and control.differs:
            return "undecided"
        if (greedy is not None and greedy.differs) or (sampled is not None and sampled.differs):
            return "different"

        is_unclear = greedy is not None and bool(greedy.unclear)
        is_weak = sampled is not None and not _is_enough(sampled, difference)
        return "undecided" if is_unclear or is_weak else "no_difference_found"


def _is_enough(sampled: SampledComparison, difference: float) -> bool:
    return sampled.noticeable is not None and sampled.noticeable <= difference


async def _measured(options: FidelityOptions, seconds: float) -> Fidelity:
    stop = stop_on_signals()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    fidelity = await unless_stopped(compare_servers(options), stop)
    if fidelity is None:
        raise MeasurementError(
            "stopped before all outputs were there: lower --samples, or raise --duration"
        )
    return fidelity


async def compare_servers(options: FidelityOptions) -> Fidelity:
    """Asks both servers and compares their outputs.

    Raises:
        MeasurementError: a server does not answer as vLLM does.
    """
    requests = options.requests
    async with (
        Client(options.tested, requests) as tested,
        Client(options.reference, requests) as reference,
    ):
        for client in (tested, reference):
            await client.connect(requests.prompts[0])

        greedy: GreedyComparison | None = None
        control: GreedyComparison | None = None
        sampled: SampledComparison | None = None
        if options.mode != "sampled":
            greedy, control = await _greedy(tested, reference, options)
        if options.mode != "greedy":
            sampled = await _sampled(tested, reference, options)

    return Fidelity(
        greedy=greedy, control=control, sampled=sampled, temperature=options.temperature
    )


async def _greedy(
    tested: Client, reference: Client, options: FidelityOptions
) -> tuple[GreedyComparison, GreedyComparison]:
    requests = options.requests
    print(f"greedy outputs of {len(requests.prompts)} prompts", file=sys.stderr)
    ask = partial(greedy_replies, prompts=requests.prompts, max_tokens=requests.max_tokens)
    replies, plain = await asyncio.gather(
        ask(tested, concurrency=options.concurrency),
        ask(reference, concurrency=options.concurrency, with_likely=True),
    )

    # Verification runs the model in other shapes than decoding; so does another batch size.
    alone = await ask(reference, concurrency=1)
    return (
        compare_greedy(replies, plain, options.near_tie),
        compare_greedy(alone, plain, options.near_tie),
    )


async def _sampled(
    tested: Client, reference: Client, options: FidelityOptions
) -> SampledComparison:
    prompts = options.requests.prompts
    print(f"{options.samples} samples of each of {len(prompts)} prompts", file=sys.stderr)

    async def ask(client: Client) -> list[list[Tokens]]:
        return await sampled_replies(
            client,
            prompts,
            {"temperature": options.temperature},
            samples=options.samples,
            max_tokens=options.draft_tokens + 2,
            concurrency=options.concurrency,
        )

    return compare_sampled(*await asyncio.gather(ask(tested), ask(reference)))


def _text(fidelity: Fidelity, difference: float) -> Iterator[str]:
    if fidelity.greedy is not None:
        yield from _greedy_text(fidelity.greedy, "greedy")
    if fidelity.control is not None:
        yield from _greedy_text(fidelity.control, "the reference, one request at a time")
    if fidelity.sampled is not None:
        yield from _sampled_text(fidelity.sampled, fidelity.temperature, difference)
    yield f"verdict: {fidelity.verdict(difference)}"


def _greedy_text(compared: GreedyComparison, name: str) -> Iterator[str]:
    same = compared.prompts - len(compared.partings) - len(compared.ties) - len(compared.unclear)
    yield f"{name}: the same for {same} of {compared.prompts} prompts"
    if compared.ties:
        largest = max(one.gap or 0.0 for one in compared.ties)
        yield (
            f"  {len(compared.ties)} first differ at a near tie, by up to {largest:.2f} nat: "
            f"numerics explain that up to {compared.limit:g}"
        )

    if compared.unclear:
        yield f"  {len(compared.unclear)} differ where a grammar hides how likely the tokens were"

    yield from _partings(compared.partings)
    if not compared.differs and compared.noticeable is not None:
        yield f"  a fault in {compared.noticeable:.0%} of the prompts would have been found"


def _partings(partings: Sequence[Parting]) -> Iterator[str]:
    for one in partings[:_SHOWN]:
        size = "an output ended" if one.gap is None else f"{one.gap:.2f} nat"
        yield f"  prompt {one.prompt} differs from token {one.position} on: {size}"
    if len(partings) > _SHOWN:
        yield f"  and {len(partings) - _SHOWN} more"


def _sampled_text(
    compared: SampledComparison, temperature: float, difference: float
) -> Iterator[str]:
    found = "different" if compared.differs else "no difference found"
    yield (
        f"sampled at temperature {temperature:g}: {found} in {compared.prompts} prompts with "
        f"{compared.samples} samples each on both (all drafted positions: p {compared.p:.2g}, "
        f"{compared.choices} degrees of freedom)"
    )
    if compared.first_differs:
        yield (
            "  the first tokens differ, which are never drafted: other weights, precision, prompts "
            "or sampling defaults, rather than speculation"
        )

    for place in compared.places[:_SHOWN]:
        where = f"prompt {place.prompt}" if place.prompt else f"token {place.position}"
        yield f"  {where} differs: p {place.p:.2g}"

    if compared.noticeable is None:
        yield "  too few outputs begin alike to compare what follows: raise --samples"
    elif not compared.differs:
        change = f"{compared.noticeable:.1%}"
        yield f"  a change of {change} at a probability of 30% would have been found"

    if not compared.differs and not _is_enough(compared, difference):
        number = samples_for(compared, difference)
        if number is not None:
            yield f"  to find one of {difference:.1%}, set --samples {number}"
