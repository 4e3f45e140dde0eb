"""``fidelity``: do two servers put out the same text, one of them with speculation?

Prompts and outputs are neither printed nor kept: differences are named by the number of the prompt
and the position of the token, both from 1.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from sidecar.commands.arguments import (
    base_url,
    duration,
    number_up_to,
    share_of_one,
    whole,
    with_sidecar_user,
    with_vllm_cacert,
)
from sidecar.commands.waiting import stop_on_signals, unless_stopped
from sidecar.errors import InputError, MeasurementError, UndecidedError
from sidecar.settings import Settings
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import (
    MOST_AT_ONCE,
    RequestOptions,
    add_request_arguments,
    request_options,
)
from specdec_tools.outputs.greedy import (
    NEAR_TIE,
    Control,
    GreedyComparison,
    compare_greedy,
    control_of,
)
from specdec_tools.outputs.padding import padded
from specdec_tools.outputs.replies import (
    Tokens,
    context_tokens,
    greedy_replies,
    sampled_replies,
)
from specdec_tools.outputs.result import (
    TOKEN_SHARE,
    Asked,
    Fidelity,
    FidelityVerdict,
    Required,
    Server,
    samples_suffice,
)
from specdec_tools.outputs.sampled import SampledComparison, compare_sampled, samples_for
from specdec_tools.outputs.text import conclusion, fidelity_text
from specdec_tools.outputs.unseen import Shares, traffic_shares

HELP = "test whether two servers' outputs are the same: greedy, and sampled as a distribution"
# Unless ``--samples`` says how many: first so many, then as many as ``--difference`` needs.
_FIRST_SAMPLES: Final = 200
_MOST_SAMPLES: Final = 4000
_FEWER: Final = 4  # the control has so many times fewer requests in flight

_CODES: Final[Mapping[FidelityVerdict, int]] = {
    "no_difference_found": 0,
    "different": 1,
    "undecided": 3,
    "reference_not_steady": 3,
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

    share = f"the share of tokens with a fault that greedy outputs must show ({TOKEN_SHARE:.0%}%)"
    parser.add_argument(
        "--token-share", type=share_of_one, default=TOKEN_SHARE, metavar="SHARE", help=share
    )

    context = "put text before each prompt, so that its context has at least about so many tokens"
    parser.add_argument("--context", type=whole(10**7), metavar="N", help=context)

    sidecar = "a sidecar whose traffic says what to look at next (--context, --extra-body)"
    parser.add_argument("--sidecar", type=base_url, metavar="URL", help=sidecar)

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
        InputError: ``--prompts``, ``--extra-body``, ``--cacert`` or ``--sidecar`` cannot be used.
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
        context=arguments.context,
    )
    required = Required(arguments.difference, arguments.token_share)
    shares = _shares(arguments.sidecar)
    try:
        fidelity = asyncio.run(_measured(options, arguments.duration))
    except MeasurementError as error:
        if arguments.json:
            print(json.dumps({"verdict": "undecided", "reason": str(error)}, indent=2))
        raise UndecidedError(str(error)) from None

    verdict = fidelity.verdict(required)
    if arguments.json:
        says = list(conclusion(fidelity, required, shares))
        document = {"verdict": verdict, "says": says, **asdict(fidelity)}
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        print("\n".join(fidelity_text(fidelity, required, shares)))

    return _CODES[verdict]


def _shares(url: str | None) -> Shares | None:
    if url is None:
        return None
    return asyncio.run(traffic_shares(with_sidecar_user(url, None, os.environ)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityOptions:
    """What is asked of the two servers; ``mode`` is both, greedy or sampled.

    ``samples`` is None for as many as ``difference`` needs. ``context`` is the least number of
    tokens in a prompt, None for prompts as they are.
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
    context: int | None = None

    @property
    def sampled_tokens(self) -> int:
        """Tokens of a sampled output that are compared."""
        return self.draft_tokens + 2


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

        options = await _with_context(reference, options)
        found = Fidelity(
            tested=Server(tested.name, tested.model),
            reference=Server(reference.name, reference.model),
            asked=await _asked(reference, options),
            greedy=None,
            control=None,
            sampled=None,
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


async def _with_context(reference: Client, options: FidelityOptions) -> FidelityOptions:
    """The options with prompts as long as they say."""
    if options.context is None:
        return options
    requests = options.requests
    prompts = await padded(reference, requests.prompts, options.context, options.concurrency)
    return replace(options, requests=replace(requests, prompts=prompts))


async def _asked(reference: Client, options: FidelityOptions) -> Asked:
    requests = options.requests
    lengths = await context_tokens(reference, requests.prompts, options.concurrency)
    known = [length for length in lengths if length is not None]
    return Asked(
        prompts=len(requests.prompts),
        contexts=(min(known), max(known)) if known and len(known) == len(lengths) else None,
        max_tokens=requests.max_tokens,
        sampled_tokens=options.sampled_tokens,
        temperature=options.temperature,
        extra_body=requests.extra_body,
    )


async def _greedy(
    tested: Client, reference: Client, options: FidelityOptions
) -> tuple[GreedyComparison, Control]:
    requests = options.requests
    print(f"greedy outputs of {len(requests.prompts)} prompts", file=sys.stderr)
    ask = partial(greedy_replies, prompts=requests.prompts, max_tokens=requests.max_tokens)
    replies, plain = await asyncio.gather(
        ask(tested, concurrency=options.concurrency),
        ask(reference, concurrency=options.concurrency, with_likely=True),
    )

    # Verification runs the model in other shapes than decoding; so does another batch size.
    alone = 1 if options.concurrency > 1 else _FEWER
    again = await ask(reference, concurrency=alone, with_likely=True)
    return (
        compare_greedy(replies, plain, options.near_tie),
        control_of(again, plain, options.near_tie),
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
    control: list[list[Tokens]] = [[] for _ in prompts]
    at_once = options.concurrency
    fewer = at_once // _FEWER or (1 if at_once > 1 else _FEWER)

    while True:
        more = samples - len(one[0])
        print(f"{more:,} samples of each of {len(prompts)} prompts", file=sys.stderr)
        await asyncio.gather(
            _add_samples(one, tested, options, more, at_once),
            _add_samples(other, reference, options, more, at_once),
        )
        # Alone on the reference, since the number in flight is what it is about.
        await _add_samples(control, reference, options, more, fewer)
        compared = compare_sampled(one, other, control)
        yield compared

        suffice = samples_suffice(compared, options.difference)
        if options.samples or suffice or samples == _MOST_SAMPLES:
            return
        # Rare choices come into view with more samples, so a tenth more than they say.
        needed = samples_for(compared, options.difference) or 2 * samples
        samples = min(max(needed, samples) * 11 // 10, _MOST_SAMPLES)


async def _add_samples(
    outputs: Sequence[list[Tokens]],
    client: Client,
    options: FidelityOptions,
    samples: int,
    concurrency: int,
) -> None:
    """Adds so many of each prompt."""
    found = await sampled_replies(
        client,
        options.requests.prompts,
        {"temperature": options.temperature},
        samples=samples,
        max_tokens=options.sampled_tokens,
        concurrency=concurrency,
    )
    for kept, more in zip(outputs, found, strict=True):
        kept.extend(more)
