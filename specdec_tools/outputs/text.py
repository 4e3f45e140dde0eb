"""A comparison of outputs in words: what was found, and what a verdict means."""

import math
from collections.abc import Iterator
from typing import Final

from specdec_tools.outputs.greedy import Control, GreedyComparison, tokens_for
from specdec_tools.outputs.numerics import STEADY
from specdec_tools.outputs.result import (
    Asked,
    Fidelity,
    Required,
    Server,
    greedy_suffice,
    samples_suffice,
)
from specdec_tools.outputs.sampled import SampledComparison, samples_for
from specdec_tools.outputs.unseen import Shares, not_looked_at

_BEYOND_DOUBT: Final = 1e-4  # a p below which nobody needs a second run
_SHOWN: Final = 10  # differences


def fidelity_text(fidelity: Fidelity, required: Required, shares: Shares | None) -> Iterator[str]:
    """All that was found, then the verdict and the sentence that says what it means.

    ``shares`` are a sidecar's traffic; None if nobody named one.
    """
    yield from _servers_text(fidelity.tested, fidelity.reference)
    if fidelity.greedy is not None:
        yield from _greedy_text(fidelity.greedy, "greedy")
    if fidelity.control is not None:
        yield from _control_text(fidelity.control)
    if fidelity.sampled is not None:
        yield from _sampled_text(fidelity.sampled, fidelity.asked.temperature)

    yield f"verdict: {fidelity.verdict(required)}"
    yield from conclusion(fidelity, required, shares)


def conclusion(fidelity: Fidelity, required: Required, shares: Shares | None) -> Iterator[str]:
    """What the verdict means, and what to do where there is none."""
    verdict = fidelity.verdict(required)
    if verdict == "no_difference_found":
        yield from _nothing_found(fidelity, shares)
    elif verdict == "different":
        yield f"The servers differ: {'; '.join(_reasons(fidelity))}."
        yield from _repeat(fidelity)
    elif verdict == "reference_not_steady":
        yield (
            "The reference is not steady: asked the same at another number of requests in flight, "
            f"{'; '.join(_unsteady(fidelity))}. Beside it, nobody can tell whether the other one "
            "differs: compare with a reference that repeats itself."
        )
    else:
        yield f"Not decided: {'; '.join(_missing(fidelity, required))}."


def _servers_text(tested: Server, reference: Server) -> Iterator[str]:
    yield f"{tested.name} ({tested.model}) against {reference.name} ({reference.model})"
    if tested.model != reference.model:
        yield "  the two models have different names: make sure that they are the same"
    if tested.name == reference.name:
        yield "  this is one server, compared with itself"


def _greedy_text(compared: GreedyComparison, name: str) -> Iterator[str]:
    yield (
        f"{name}: the same for {_prompts(compared.same, compared.prompts)}; "
        f"{compared.compared:,} of {compared.tokens:,} tokens compared"
    )
    if compared.ties:
        largest = max(one.gap or 0.0 for one in compared.ties)
        yield (
            f"  {len(compared.ties)} first differ at a near tie, by up to {largest:.2f} nat: "
            f"numerics explain that up to {compared.near_tie:g}"
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


def _control_text(control: Control) -> Iterator[str]:
    yield from _greedy_text(control.outputs, "the reference, one request at a time")
    movement = control.movement
    if movement.p99 is not None:
        yield (
            "  99% of the gaps between its two likeliest tokens moved by at most "
            f"{movement.p99:.2f} nat"
        )


def _sampled_text(compared: SampledComparison, temperature: float) -> Iterator[str]:
    found = "different" if compared.differs else "no difference found"
    yield (
        f"sampled at temperature {temperature:g}: {found} in {_prompts(compared.prompts)} with "
        f"{compared.samples:,} samples each on both (all drafted positions: {_p(compared.p)}, "
        f"{compared.choices:,} degrees of freedom)"
    )
    if compared.numerics is not None:
        yield (
            "  allowed for numerics, as the reference differs from itself: "
            f"{compared.numerics.at_most:.3f} nat a token"
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


def _nothing_found(fidelity: Fidelity, shares: Shares | None) -> Iterator[str]:
    """What was looked at, what it would have shown, and what nobody looked at."""
    asked = fidelity.asked
    yield f"No difference was found in what was looked at: {'; '.join(_looked_at(fidelity))}."

    shown = list(_noticeable(fidelity))
    if shown:
        yield f"This would have shown {'; '.join(shown)}."

    longest = _longest(asked)
    missing = list(not_looked_at(shares, longest, asked.extra_body))
    if missing:
        yield f"Not looked at: {'; '.join(missing)}."
    elif shares is not None:
        yield "The sidecar's traffic has nothing else in 1% of its requests or more."


def _looked_at(fidelity: Fidelity) -> Iterator[str]:
    asked = fidelity.asked
    contexts = "prompts of unknown length"
    if asked.contexts is not None:
        shortest, longest = asked.contexts
        contexts = f"prompts of {shortest:,} to {longest:,} tokens"
    fields = ", ".join(sorted(asked.extra_body)) or "no other sampling parameters"
    yield f"{_prompts(asked.prompts)}, {contexts}, with {fields}"

    greedy = fidelity.greedy
    if greedy is not None:
        yield f"{greedy.compared:,} greedy tokens, up to {asked.max_tokens} of a prompt"
    sampled = fidelity.sampled
    if sampled is not None:
        yield (
            f"tokens 1 to {asked.sampled_tokens} of {sampled.samples:,} samples of each at "
            f"temperature {asked.temperature:g}"
        )


def _noticeable(fidelity: Fidelity) -> Iterator[str]:
    greedy = fidelity.greedy
    if greedy is not None and greedy.noticeable is not None:
        yield f"a fault in {greedy.noticeable:.2%} of the greedy tokens (with 95%)"

    sampled = fidelity.sampled
    if sampled is None or sampled.noticeable_anywhere is None:
        return
    everywhere = "" if sampled.noticeable is None else f"{sampled.noticeable:.1%} everywhere, "
    in_one = sampled.noticeable_in_one
    one = ""
    if in_one is not None:
        # A prompt's test adds up its positions, so one of them has to be that much worse.
        positions = math.sqrt(len(sampled.noticeable_at))
        one = (
            f"; in a single prompt only {_points(in_one)} at every position, "
            f"or {_points(in_one * positions)} at one"
        )
    yield (
        f"a change of a token's probability of 30% by {everywhere}"
        f"{sampled.noticeable_anywhere:.1%} at any one drafted position of all prompts (with 80%)"
        f"{one}"
    )


def _points(change: float) -> str:
    return f"one of {change:.0%}" if change < 1 else "none"


def _longest(asked: Asked) -> int | None:
    """The longest context, prompt and output together."""
    return None if asked.contexts is None else asked.contexts[1] + asked.max_tokens


def _reasons(fidelity: Fidelity) -> Iterator[str]:
    greedy = fidelity.greedy
    if greedy is not None and greedy.partings:
        yield (
            f"greedy outputs of {_prompts(len(greedy.partings), greedy.prompts)} part where the "
            f"reference was sure of its token by more than {greedy.near_tie:g} nat"
        )
    if greedy is not None and fidelity.control is not None and fidelity.parts_more:
        own = fidelity.control.outputs
        yield (
            f"greedy outputs part at {len(greedy.ties)} near ties in {greedy.compared:,} tokens, "
            f"the reference's own at {len(own.ties)} in {own.compared:,}"
        )
    sampled = fidelity.sampled
    if sampled is not None and sampled.differs:
        yield "samples differ by more than chance and the reference's own numerics explain"


def _repeat(fidelity: Fidelity) -> Iterator[str]:
    sampled = fidelity.sampled
    if sampled is None or not sampled.differs:
        return
    if fidelity.greedy is not None and fidelity.greedy.partings:
        return
    if min((sampled.p, *(place.p for place in sampled.places))) > _BEYOND_DOUBT:
        yield "Equal servers differ as much in up to one of 20 runs: run it again to be sure."


def _unsteady(fidelity: Fidelity) -> Iterator[str]:
    control = fidelity.control
    if control is not None and control.outputs.partings:
        yield (
            f"its greedy outputs of {_prompts(len(control.outputs.partings))} part where it was "
            f"sure of its token by more than {control.outputs.near_tie:g} nat"
        )
    if control is not None and not control.movement.is_steady:
        yield (
            "the gap between its two likeliest tokens moves by up to "
            f"{control.movement.p99 or 0.0:.2f} nat (P99), and numerics explain {STEADY:g}"
        )
    numerics = None if fidelity.sampled is None else fidelity.sampled.numerics
    if numerics is not None and not numerics.is_steady:
        yield (
            "its samples differ as if each token's log-probability moved by "
            f"{numerics.at_least:.2f} nat or more"
        )


def _missing(fidelity: Fidelity, required: Required) -> Iterator[str]:
    """What keeps it from being decided, and what to do."""
    if not fidelity.is_complete:
        yield "not all outputs came (see above): give more --duration, or fewer prompts"

    greedy = fidelity.greedy
    if greedy is not None and greedy.unclear:
        yield (
            f"greedy outputs of {_prompts(len(greedy.unclear))} part where something other than "
            "the model decides: use --mode sampled"
        )
    elif greedy is not None and not greedy_suffice(greedy, required.token_share):
        yield (
            f"{greedy.compared:,} greedy tokens were compared, and a fault in "
            f"{required.token_share:.2%} of them takes {tokens_for(required.token_share):,}: give "
            "more --prompts or --max-tokens"
        )

    sampled = fidelity.sampled
    if sampled is None or samples_suffice(sampled, required.difference):
        return
    untested = [at for at, change in sampled.noticeable_at.items() if change is None]
    if untested or not sampled.noticeable_at:
        tokens = ", ".join(map(str, untested)) or "2"
        yield (
            f"too few outputs are so long that token {tokens} can be compared: give other "
            "--prompts, raise --samples, or lower --tokens"
        )
    number = samples_for(sampled, required.difference)
    if number is not None:
        yield (
            f"samples would have shown {sampled.noticeable_anywhere:.1%} at any one position; "
            f"for {required.difference:.1%}, set --samples {number}, or give more --prompts"
        )


def _prompts(number: int, of: int | None = None) -> str:
    share = f"{number} of {of}" if of is not None else f"{number}"
    return f"{share} prompt" if (of or number) == 1 else f"{share} prompts"


def _p(chance: float) -> str:
    return "p < 0.0001" if chance < 0.0001 else f"p {chance:.2g}"


def _and_more(number: int) -> Iterator[str]:
    if number > _SHOWN:
        yield f"  and {number - _SHOWN} more"
