"""Sampled outputs of two servers: whether they have the same distribution.

A prompt's outputs are a tree: what follows each beginning is compared among the outputs that share
it. Where both servers have too few of a beginning, what follows is compared among all such outputs
of the prompt, so that each position is tested with all of them. The first token comes from the
prefill and is never drafted; a difference there is none of speculation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from sidecar.commands.outputs.homogeneity import FEWEST, Homogeneity, homogeneity, total
from sidecar.commands.outputs.replies import Tokens

FALSE_ALARMS: Final = 0.05
"""The chance that any of the tests finds a difference between equal servers."""
_POOLED: Final = FALSE_ALARMS / 2
_EACH: Final = FALSE_ALARMS / 4  # for all positions, and for all prompts


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
    drafted position; ``noticeable_at`` that at a position alone. They are None where nothing could
    be compared.
    """

    prompts: int
    samples: int
    choices: int
    p: float
    noticeable: float | None
    noticeable_at: Mapping[int, float | None]
    differs: bool
    first_differs: bool
    places: tuple[Place, ...]

    @property
    def noticeable_anywhere(self) -> float | None:
        """The change that would have been noticed at whichever drafted position it is.

        None if one of them could not be compared.
        """
        changes = [change for change in self.noticeable_at.values() if change is not None]
        is_known = len(changes) == len(self.noticeable_at)
        return max(changes) if changes and is_known else None


Node = tuple[int, int]
"""A prompt and a position, both from 1."""


def compare_sampled(
    one: Sequence[Sequence[Tokens]], other: Sequence[Sequence[Tokens]]
) -> SampledComparison:
    """Compares the outputs of two servers, prompt by prompt in the same order.

    Half of the chance of a false alarm is for all choices together. A quarter is shared by the
    tests of the positions, another one by those of the prompts (Bonferroni).
    """
    found = _nodes(one, other)
    drafted = {place: node for place, node in found.items() if place[1] > 1}
    pooled = total(drafted.values())

    by_position: dict[int, Homogeneity] = defaultdict(Homogeneity)
    by_prompt: dict[int, Homogeneity] = defaultdict(Homogeneity)
    for (prompt, position), node in found.items():
        by_position[position] += node
        if position > 1:
            by_prompt[prompt] += node

    limit = _limit(by_position)
    places = [
        *(Place(None, position, p) for position, p in _below(limit, by_position)),
        *(Place(prompt, None, p) for prompt, p in _below(_limit(by_prompt), by_prompt)),
    ]

    first = [place for place in places if place.position == 1]
    positions = sorted({position for _, position in drafted})
    return SampledComparison(
        prompts=len(one),
        samples=min((len(outputs) for outputs in (*one, *other)), default=0),
        choices=pooled.freedom,
        p=pooled.p,
        noticeable=pooled.noticeable(_POOLED),
        noticeable_at={position: by_position[position].noticeable(limit) for position in positions},
        differs=pooled.p < _POOLED or bool(places),
        first_differs=bool(first),
        places=tuple(sorted(places, key=attrgetter("p"))),
    )


def _limit(tests: Mapping[int, Homogeneity]) -> float:
    """What a p must be below to count, so that few of all these tests find what is not there."""
    tested = sum(bool(test.freedom) for test in tests.values())
    return _EACH / max(1, tested)


def _below(limit: float, tests: Mapping[int, Homogeneity]) -> list[tuple[int, float]]:
    return [(number, test.p) for number, test in tests.items() if test.p < limit]


def _nodes(
    one: Sequence[Sequence[Tokens]], other: Sequence[Sequence[Tokens]]
) -> Mapping[Node, Homogeneity]:
    """What was compared of each prompt at each position that any output has."""
    found: dict[Node, Homogeneity] = {}
    for prompt, (first, second) in enumerate(zip(one, other, strict=True), start=1):
        longest = max(map(len, (*first, *second)), default=0)
        for place in range(longest):
            contexts = _contexts(first, second, place)
            found[prompt, place + 1] = total(homogeneity(*followers) for followers in contexts)
    return found


def _contexts(
    first: Sequence[Tokens], second: Sequence[Tokens], place: int
) -> Iterator[tuple[Counter[int], Counter[int]]]:
    """What follows each beginning of ``place`` tokens, and what follows all rare ones together.

    Whether one is rare depends on how often both servers have it together, so that no server's own
    counts decide what is compared with what.
    """
    followers = _followers(first, place)
    others = _followers(second, place)
    smaller = min(len(first), len(second)) / (len(first) + len(second))

    rare: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    for beginning in followers.keys() | others.keys():
        context = followers[beginning], others[beginning]
        outputs = sum(counts.total() for counts in context)
        if outputs * smaller >= 2 * FEWEST:
            yield context
            continue
        for together, counts in zip(rare, context, strict=True):
            together.update(counts)

    yield rare


def _followers(outputs: Iterable[Tokens], place: int) -> defaultdict[Tokens, Counter[int]]:
    """What follows each beginning of ``place`` tokens, and how often."""
    found: defaultdict[Tokens, Counter[int]] = defaultdict(Counter)
    for tokens in outputs:
        if len(tokens) > place:
            found[tokens[:place]][tokens[place]] += 1
    return found


def samples_for(comparison: SampledComparison, difference: float) -> int | None:
    """About how many samples a prompt and server would show a difference of this size anywhere.

    None if some position could not be compared.
    """
    noticeable = comparison.noticeable_anywhere
    if noticeable is None:
        return None
    return round(comparison.samples * (noticeable / difference) ** 2)
