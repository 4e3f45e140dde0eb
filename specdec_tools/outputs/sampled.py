"""Sampled outputs of two servers: whether they have the same distribution.

A prompt's outputs are a tree: what follows each beginning is compared among the outputs that share
it, and what follows the rare continuations of one beginning among these together. Each comparison
is independent of those before it, so their sum is a test of the whole outputs.

A position by itself is tested with all of its outputs: those whose beginnings are rare are compared
together, wherever they come from. That shows more there, but repeats what earlier positions have
shown, so it is in no sum over positions. The first token comes from the prefill and is never
drafted; a difference there is none of speculation.

What counts is what differs by more than the reference from itself at another number in flight.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar

from specdec_tools.outputs.homogeneity import (
    FEWEST,
    Context,
    Homogeneity,
    homogeneity,
    total,
)
from specdec_tools.outputs.numerics import NONE, Numerics, numerics_of
from specdec_tools.outputs.replies import Tokens

FALSE_ALARMS: Final = 0.05
"""The chance that any of the tests finds a difference between equal servers."""
_POOLED: Final = FALSE_ALARMS / 2
_EACH: Final = FALSE_ALARMS / 4  # for all positions, and for all prompts
_REACHED: Final = 0.05  # share of the outputs that are so long


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
Pair: TypeAlias = tuple[Sequence[_Item], Sequence[_Item]]
"""What is compared, of both servers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where outputs may differ: a prompt, or a position over all prompts; both from 1."""

    prompt: int | None
    position: int | None
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledComparison:
    """``differs``: all choices after the first token together differ, or some ``places`` do.

    ``samples`` is the number of outputs of each prompt and server, the smallest. ``choices`` are
    the degrees of freedom. ``first_differs``: the first tokens differ, which come from the prefill.

    ``noticeable`` is the change of a probability that would have been noticed if it were at every
    drafted position of all prompts; ``noticeable_at`` that at a position alone, of those that at
    least 5 % of the outputs reach; ``noticeable_in_one`` that at every drafted position of a single
    prompt, whichever it is. They are None where nothing could be compared.

    ``numerics``: how far the control says that numerics move log-probabilities; None without one.
    """

    prompts: int
    samples: int
    choices: int
    p: float
    noticeable: float | None
    noticeable_at: Mapping[int, float | None]
    noticeable_in_one: float | None
    numerics: Numerics | None
    differs: bool
    first_differs: bool
    places: tuple[Place, ...]

    @property
    def noticeable_anywhere(self) -> float | None:
        """The change that would have been noticed at whichever drafted position it is.

        None if one of them could not be compared.
        """
        return _largest(list(self.noticeable_at.values()))


def compare_sampled(
    one: Sequence[Sequence[Tokens]],
    other: Sequence[Sequence[Tokens]],
    control: Sequence[Sequence[Tokens]] | None = None,
) -> SampledComparison:
    """Compares the outputs of two servers, prompt by prompt in the same order.

    ``control`` are more of the other's, at another number in flight: what these differ by is
    allowed for. Half of the chance of a false alarm is for all choices together. A quarter is
    shared by the tests of the positions, another one by those of the prompts (Bonferroni).
    """
    prompts = list(zip(one, other, strict=True))
    numerics = None if control is None else _numerics(control, other)
    variance = (numerics or NONE).variance

    by_prompt = {
        prompt: total(_drafted(first, second), variance)
        for prompt, (first, second) in enumerate(prompts, start=1)
    }
    pooled = Homogeneity(
        sum(test.square for test in by_prompt.values()),
        sum(test.freedom for test in by_prompt.values()),
        sum(test.weight for test in by_prompt.values()),
    )
    by_position = {
        position: total(contexts, variance) for position, contexts in _positions(prompts).items()
    }

    threshold = _threshold(by_position)
    prompt_threshold = _threshold(by_prompt)
    places = [
        *(Place(None, position, p) for position, p in _below(threshold, by_position)),
        *(Place(prompt, None, p) for prompt, p in _below(prompt_threshold, by_prompt)),
    ]

    reached = _reached(prompts)
    is_first = any(place.position == 1 for place in places)
    in_one = [test.noticeable(prompt_threshold) for test in by_prompt.values()]
    return SampledComparison(
        prompts=len(one),
        samples=min((len(outputs) for outputs in (*one, *other)), default=0),
        choices=round(pooled.freedom),
        p=pooled.p,
        noticeable=pooled.noticeable(_POOLED),
        noticeable_at={
            position: node.noticeable(threshold)
            for position, node in sorted(by_position.items())
            if 1 < position <= reached
        },
        noticeable_in_one=_largest(in_one),
        numerics=numerics,
        differs=pooled.p < _POOLED or bool(places),
        first_differs=is_first,
        places=tuple(sorted(places, key=attrgetter("p"))),
    )


def _numerics(control: Sequence[Sequence[Tokens]], other: Sequence[Sequence[Tokens]]) -> Numerics:
    contexts: list[Context] = []
    for first, second in zip(control, other, strict=True):
        contexts += _drafted(first, second)
    return numerics_of(contexts)


def _drafted(first: Sequence[Tokens], second: Sequence[Tokens]) -> list[Context]:
    """What follows each beginning of one prompt's outputs, from the second token on."""
    return [context for position, context in _tree(first, second, 1) if position > 1]


def _positions(prompts: Iterable[Pair[Tokens]]) -> Mapping[int, list[Context]]:
    """The contexts of each position, over all prompts."""
    found: dict[int, list[Context]] = defaultdict(list)
    for first, second in prompts:
        for position in range(1, _longest(first, second) + 1):
            found[position] += _at(position, first, second)
    return found


def _largest(changes: Sequence[float | None]) -> float | None:
    """None if one of them is unknown."""
    known = [change for change in changes if change is not None]
    return max(known) if known and len(known) == len(changes) else None


def _threshold(tests: Mapping[int, Homogeneity]) -> float:
    """What a p must be below to count, so that few of all these tests find what is not there."""
    tested = sum(bool(test.freedom) for test in tests.values())
    return _EACH / max(1, tested)


def _below(threshold: float, tests: Mapping[int, Homogeneity]) -> list[tuple[int, float]]:
    return [(number, test.p) for number, test in tests.items() if test.p < threshold]


def _longest(first: Sequence[Tokens], second: Sequence[Tokens]) -> int:
    return max(map(len, (*first, *second)), default=0)


def _reached(prompts: Iterable[Pair[Tokens]]) -> int:
    """The last position that so many outputs reach that a fault there matters."""
    lengths = sorted(len(tokens) for outputs in prompts for tokens in chain(*outputs))
    return lengths[int((1 - _REACHED) * len(lengths))] if lengths else 0


def _tree(
    first: Sequence[Tokens], second: Sequence[Tokens], position: int
) -> Iterator[tuple[int, Context]]:
    """What is at ``position`` of these outputs and, by what that is, at each one after it."""
    followers = _by_token(first, position)
    others = _by_token(second, position)
    if not followers and not others:
        return
    context = homogeneity(_counts(followers), _counts(others))
    if context is not None:
        yield position, context

    common, rare = _common_and_rare(followers, others, (first, second))
    for alike in (*common, rare):
        yield from _tree(*alike, position + 1)


def _by_token(outputs: Iterable[Tokens], position: int) -> Mapping[int, list[Tokens]]:
    """The outputs by what they have at a position; without those that have ended."""
    found: dict[int, list[Tokens]] = defaultdict(list)
    for tokens in outputs:
        if len(tokens) >= position:
            found[tokens[position - 1]].append(tokens)
    return found


def _counts(outputs: Mapping[int, Sequence[Tokens]]) -> Counter[int]:
    return Counter({token: len(alike) for token, alike in outputs.items()})


def _at(position: int, first: Sequence[Tokens], second: Sequence[Tokens]) -> Iterator[Context]:
    """What is at a position after each common beginning, and after all rare ones together."""
    followers = _by_beginning(first, position)
    others = _by_beginning(second, position)

    common, rare = _common_and_rare(followers, others, (first, second))
    for own, its in (*common, rare):
        context = homogeneity(Counter(own), Counter(its))
        if context is not None:
            yield context


def _by_beginning(outputs: Iterable[Tokens], position: int) -> Mapping[Tokens, list[int]]:
    """The tokens at a position by all that precedes them."""
    found: dict[Tokens, list[int]] = defaultdict(list)
    for tokens in outputs:
        if len(tokens) >= position:
            found[tokens[: position - 1]].append(tokens[position - 1])
    return found


def _common_and_rare(
    followers: Mapping[_Key, Sequence[_Item]],
    others: Mapping[_Key, Sequence[_Item]],
    outputs: Pair[Tokens],
) -> tuple[list[Pair[_Item]], Pair[_Item]]:
    """Of both servers: those that are alike and many enough to be compared, and all the rest.

    Whether they are enough of all ``outputs`` depends on how many both have together: what one of
    them has must not decide what is compared with what.
    """
    sizes = [len(those) for those in outputs]
    smaller = min(sizes) / sum(sizes)

    common = []
    rare: tuple[list[_Item], list[_Item]] = [], []
    for key in followers.keys() | others.keys():
        alike = followers.get(key, ()), others.get(key, ())
        if sum(map(len, alike)) * smaller >= 2 * FEWEST:
            common.append(alike)
            continue
        for together, items in zip(rare, alike, strict=True):
            together.extend(items)

    return common, rare


def samples_for(comparison: SampledComparison, difference: float) -> int | None:
    """About how many samples a prompt and server would show a difference of this size anywhere.

    None if some position could not be compared, so that nobody knows.
    """
    noticeable = comparison.noticeable_anywhere
    if noticeable is None:
        return None
    return round(comparison.samples * (noticeable / difference) ** 2)
