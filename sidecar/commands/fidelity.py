"""``fidelity``: do two servers put out the same text, one of them with speculation?

Prompts and outputs are neither printed nor kept: differences are named by the number of the prompt
and the position of the token, both from 1.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final, Literal

from sidecar.commands.arguments import (
    base_url,
    duration,
    number_up_to,
    share_of_one,
    whole,
    with_vllm_cacert,
)
from sidecar.commands.load.client import Client
from sidecar.commands.load.workload import (
    MOST_AT_ONCE,
    RequestOptions,
    add_request_arguments,
    request_options,
)
from sidecar.commands.outputs.greedy import (
    NEAR_TIE,
    GreedyComparison,
    compare_greedy,
    prompts_for,
)
from sidecar.commands.outputs.replies import Tokens, greedy_replies, sampled_replies
from sidecar.commands.outputs.sampled import SampledComparison, compare_sampled, samples_for
from sidecar.commands.waiting import stop_on_signals, unless_stopped
from sidecar.errors import InputError, MeasurementError, UndecidedError
from sidecar.settings import Settings

HELP = "test whether two servers' outputs are the same: greedy, and sampled as a distribution"
# Unless ``--samples`` says how many: first so many, then as many as ``--difference`` needs.
_FIRST_SAMPLES: Final = 200
_MOST_SAMPLES: Final = 4000
_BEYOND_DOUBT: Final = 1e-4  # a p below which nobody needs a second run
PROMPT_SHARE: Final = 0.2
"""The share of prompts with a fault that greedy outputs must show, unless told otherwise."""
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

    samples = (
        "sampled outputs of each prompt and server (default: as many as --difference needs, at most"
        f" {_MOST_SAMPLES:,})"
    )
    parser.add_argument("--samples", type=whole(10**6), metavar="N", help=samples)

    drafts = "draft tokens per step of the server to test (default: 3)"
    parser.add_argument("--tokens", type=whole(100), default=3, metavar="K", help=drafts)

    difference = (
        "the change of a token's probability that sampled outputs must show, at whichever drafted"
        " position (default: 5%%)"
    )
    parser.add_argument(
        "--difference", type=share_of_one, default=0.05, metavar="SHARE", help=difference
    )

    share = (
        "the share of prompts with a fault that greedy outputs must show"
        f" (default: {PROMPT_SHARE:.0%}%)"
    )
    parser.add_argument(
        "--prompt-share", type=share_of_one, default=PROMPT_SHARE, metavar="SHARE", help=share
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
    add_request_arguments(parser, endpoint="completions")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if no difference was found, 1 if one was, 3 if that cannot be told.

    Raises:
        InputError: ``--prompts``, ``--extra-body`` or ``--cacert`` cannot be used.
        SettingsError: the API key cannot be used.
        UndecidedError: a server does not answer, or not in time.
    """
    if "seed" in arguments.extra_body:
        raise InputError(
            "--extra-body: with a seed, vLLM repeats the same samples; remove it to compare many"
        )

    options = FidelityOptions(
        tested=arguments.url or settings.vllm_url,
        reference=arguments.against,
        requests=request_options(arguments, with_vllm_cacert(settings, arguments.cacert)),
        mode=arguments.mode,
        temperature=arguments.temperature,
        samples=arguments.samples,
        difference=arguments.difference,
        draft_tokens=arguments.tokens,
        near_tie=arguments.near_tie,
        concurrency=arguments.concurrency,
    )
    required = Required(arguments.difference, arguments.prompt_share)
    try:
        fidelity = asyncio.run(_measured(options, arguments.duration))
    except MeasurementError as error:
        if arguments.json:
            print(json.dumps({"verdict": "undecided", "reason": str(error)}, indent=2))
        raise UndecidedError(str(error)) from None

    verdict = fidelity.verdict(required)
    if arguments.json:
        document = {"verdict": verdict, **asdict(fidelity)}
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(_text(fidelity, required)))

    return _CODES[verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityOptions:
    """What is asked of the two servers; ``mode`` is both, greedy or sampled.

    ``samples`` is None for as many as ``difference`` needs.
    """

    tested: str
    reference: str
    requests: RequestOptions
    mode: str
    temperature: float
    samples: int | None
    difference: float
    draft_tokens: int
    near_tie: float
    concurrency: int


@dataclass(frozen=True, slots=True)
class Required:
    """What must have been noticed if there were such a fault; both are shares of 1.

    ``difference`` is the change of a token's probability, ``prompt_share`` the share of the prompts
    whose greedy outputs have a fault.
    """

    difference: float
    prompt_share: float = PROMPT_SHARE


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was asked: its address without credentials, and the model's name."""

    name: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """What was compared; None for what was not.

    ``control`` compares the reference's greedy outputs with its own for one request at a time.
    ``is_complete``: all outputs that were asked for came in time.
    """

    tested: Server
    reference: Server
    greedy: GreedyComparison | None
    control: GreedyComparison | None
    sampled: SampledComparison | None
    temperature: float
    is_complete: bool = True

    def verdict(self, required: Required) -> FidelityVerdict:
        """Whether they differ, or what is ``required`` would have been noticed.

        Greedy outputs say nothing if the reference's own differ from each other.
        """
        if self.sampled is not None and self.sampled.differs:
            return "different"

        is_repeatable = self.control is None or not self.control.differs
        if self.greedy is not None and self.greedy.differs and is_repeatable:
            return "different"

        is_known = (
            self.is_complete
            and is_repeatable
            and (self.greedy is None or _greedy_suffice(self.greedy, required.prompt_share))
            and (self.sampled is None or _samples_suffice(self.sampled, required.difference))
        )
        return "no_difference_found" if is_known else "undecided"


def _greedy_suffice(greedy: GreedyComparison, share: float) -> bool:
    if greedy.unclear or greedy.noticeable is None:
        return False
    return greedy.noticeable <= share


def _samples_suffice(sampled: SampledComparison, difference: float) -> bool:
    noticeable = sampled.noticeable_anywhere
    return noticeable is not None and noticeable <= difference


async def _measured(options: FidelityOptions, seconds: float) -> Fidelity:
    """What was compared until the time is over, or a signal stops it.

    Raises:
        MeasurementError: a server does not answer as vLLM does, or nothing was compared in time.
    """
    found: list[Fidelity] = []

    async def compare() -> None:
        async for fidelity in compare_servers(options):
            found[:] = [fidelity]

    stop = stop_on_signals()
    reason = "stopped"
    try:
        await unless_stopped(asyncio.wait_for(compare(), seconds), stop)
    except TimeoutError:
        reason = "the time was over (--duration)"

    if not found:
        raise MeasurementError(f"{reason} before there was anything to compare")
    if not found[-1].is_complete:
        print(f"{reason} before all outputs were there", file=sys.stderr)
    return found[-1]


async def compare_servers(options: FidelityOptions) -> AsyncIterator[Fidelity]:
    """Asks both servers and compares their outputs: all that is compared, after each part.

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

        found = Fidelity(
            tested=Server(tested.name, tested.model),
            reference=Server(reference.name, reference.model),
            greedy=None,
            control=None,
            sampled=None,
            temperature=options.temperature,
            is_complete=False,
        )
        if options.mode != "sampled":
            greedy, control = await _greedy(tested, reference, options)
            found = replace(found, greedy=greedy, control=control)
            yield found
        if options.mode != "greedy":
            async for sampled in _sampled(tested, reference, options):
                found = replace(found, sampled=sampled)
                yield found

    yield replace(found, is_complete=True)


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
) -> AsyncIterator[SampledComparison]:
    """The comparison of ever more samples until they suffice, or of as many as the options say.

    What suffices depends on how much outputs vary, not on whether the servers' differ.
    """
    prompts = options.requests.prompts
    samples = options.samples or _FIRST_SAMPLES
    one: list[list[Tokens]] = [[] for _ in prompts]
    other: list[list[Tokens]] = [[] for _ in prompts]

    while True:
        more = samples - len(one[0])
        print(f"{more:,} samples of each of {len(prompts)} prompts", file=sys.stderr)
        await asyncio.gather(
            _add_samples(one, tested, options, more),
            _add_samples(other, reference, options, more),
        )
        compared = compare_sampled(one, other)
        yield compared

        suffice = _samples_suffice(compared, options.difference)
        if options.samples or suffice or samples == _MOST_SAMPLES:
            return
        # Rare choices come into view with more samples, so a tenth more than they say.
        needed = samples_for(compared, options.difference) or 2 * samples
        samples = min(max(needed, samples) * 11 // 10, _MOST_SAMPLES)


async def _add_samples(
    outputs: Sequence[list[Tokens]], client: Client, options: FidelityOptions, samples: int
) -> None:
    """Adds so many of each prompt."""
    found = await sampled_replies(
        client,
        options.requests.prompts,
        {"temperature": options.temperature},
        samples=samples,
        max_tokens=options.draft_tokens + 2,
        concurrency=options.concurrency,
    )
    for kept, more in zip(outputs, found, strict=True):
        kept.extend(more)


def _text(fidelity: Fidelity, required: Required) -> Iterator[str]:
    yield from _servers_text(fidelity.tested, fidelity.reference)
    if fidelity.greedy is not None:
        yield from _greedy_text(fidelity.greedy, "greedy")
    if fidelity.control is not None:
        yield from _greedy_text(fidelity.control, "the reference, one request at a time")
    if fidelity.greedy is not None and fidelity.control is not None:
        yield from _greedy_conclusion(fidelity.greedy, fidelity.control, required.prompt_share)
    if fidelity.sampled is not None:
        yield from _sampled_text(fidelity.sampled, fidelity.temperature, required.difference)
    yield f"verdict: {fidelity.verdict(required)}"


def _servers_text(tested: Server, reference: Server) -> Iterator[str]:
    yield f"{tested.name} ({tested.model}) against {reference.name} ({reference.model})"
    if tested.model != reference.model:
        yield "  the two models have different names: make sure that they are the same"
    if tested.name == reference.name:
        yield "  this is one server, compared with itself"


def _greedy_text(compared: GreedyComparison, name: str) -> Iterator[str]:
    yield f"{name}: the same for {_prompts(compared.same, compared.prompts)}"
    if compared.ties:
        largest = max(one.gap or 0.0 for one in compared.ties)
        yield (
            f"  {len(compared.ties)} first differ at a near tie, by up to {largest:.2f} nat: "
            f"numerics explain that up to {compared.limit:g}"
        )

    if compared.unclear:
        yield (
            f"  {len(compared.unclear)} differ where the reference did not choose its likeliest "
            "token: a grammar, a penalty or a bias decides there"
        )

    for one in compared.partings[:_SHOWN]:
        size = "an output ended" if one.gap is None else f"{one.gap:.2f} nat"
        yield f"  prompt {one.prompt} differs from token {one.position} on: {size}"
    yield from _and_more(len(compared.partings))


def _greedy_conclusion(
    greedy: GreedyComparison, control: GreedyComparison, share: float
) -> Iterator[str]:
    if control.differs:
        yield "  the reference's own outputs differ, so the greedy ones say nothing"
        return
    if greedy.differs:
        return

    if greedy.noticeable is not None:
        yield f"  a fault in {greedy.noticeable:.0%} of the prompts would have been found"
    if not _greedy_suffice(greedy, share):
        yield (
            f"  to find one in {share:.0%} of them, {prompts_for(share)} must be the same to the "
            "end: give more --prompts, or fewer --max-tokens"
        )


def _sampled_text(
    compared: SampledComparison, temperature: float, difference: float
) -> Iterator[str]:
    found = "different" if compared.differs else "no difference found"
    yield (
        f"sampled at temperature {temperature:g}: {found} in {_prompts(compared.prompts)} with "
        f"{compared.samples:,} samples each on both (all drafted positions: {_p(compared.p)}, "
        f"{compared.choices:,} degrees of freedom)"
    )
    if compared.first_differs:
        yield (
            "  the first tokens differ, which are never drafted: that points to other weights, "
            "precision, prompts or sampling defaults, rather than to speculation"
        )

    for place in compared.places[:_SHOWN]:
        where = f"prompt {place.prompt}" if place.prompt else f"token {place.position}"
        yield f"  {where} differs: {_p(place.p)}"
    yield from _and_more(len(compared.places))

    if not compared.differs:
        yield from _power_text(compared, difference)
    elif min((compared.p, *(place.p for place in compared.places))) > _BEYOND_DOUBT:
        yield "  equal servers differ as much in up to one of 20 runs: run it again to be sure"


def _power_text(compared: SampledComparison, difference: float) -> Iterator[str]:
    """What would have been noticed, and what that lacks."""
    untested = [at for at, change in compared.noticeable_at.items() if change is None]
    if untested:
        tokens = ", ".join(map(str, untested))
        yield (
            f"  too few outputs are so long that token {tokens} can be compared: give other "
            "--prompts, raise --samples, or lower --tokens"
        )

    if compared.noticeable is not None:
        change = f"{compared.noticeable:.1%}"
        alone = compared.noticeable_anywhere
        elsewhere = "" if alone is None else f", one of {alone:.1%} at any one of them alone"
        yield (
            f"  a change of {change} at a probability of 30% would have been found if it were at "
            f"every drafted position{elsewhere}"
        )

    number = samples_for(compared, difference)
    if number is not None and not _samples_suffice(compared, difference):
        yield f"  to find one of {difference:.1%} at any one, set --samples {number}"


def _prompts(number: int, of: int | None = None) -> str:
    share = f"{number} of {of}" if of is not None else f"{number}"
    return f"{share} prompt" if (of or number) == 1 else f"{share} prompts"


def _p(chance: float) -> str:
    return "p < 0.0001" if chance < 0.0001 else f"p {chance:.2g}"


def _and_more(number: int) -> Iterator[str]:
    if number > _SHOWN:
        yield f"  and {number - _SHOWN} more"
