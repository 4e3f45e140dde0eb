"""Sampled outputs of two servers: whether they have the same distribution.

A prompt's outputs are a tree: what follows each beginning is compared among the outputs that share
it. So each choice is compared under the same context, and all together are a test of the whole
outputs. The first token comes from the prefill and is never drafted; a difference there is none of
speculation.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.commands.outputs.homogeneity import Homogeneity, homogeneity, total
from sidecar.commands.outputs.replies import Tokens

FALSE_ALARMS: Final = 0.05
"""The chance that any of the tests finds a difference between equal servers."""
_POOLED: Final = FALSE_ALARMS / 2


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
    the degrees of freedom. ``noticeable`` is the change of a probability that would have been
    noticed, None if nothing could be compared. ``first_differs``: the first tokens differ, which
    come from the prefill.
    """

    prompts: int
    samples: int
    choices: int
    p: float
    noticeable: float | None
    differs: bool
    first_differs: bool
    places: tuple[Place, ...]


Node = tuple[int, int]
"""A prompt and a position, both from 1."""


def compare_sampled(
    one: Sequence[Sequence[Tokens]], other: Sequence[Sequence[Tokens]]
) -> SampledComparison:
    """Compares the outputs of two servers, prompt by prompt in the same order.

    Half of the chance of a false alarm is for all choices together, the other half is shared by the
    tests of each prompt and each position (Bonferroni).
    """
    found = _nodes(one, other)
    drafted = {place: node for place, node in found.items() if place[1] > 1}
    pooled = total(drafted.values())

    by_place: dict[tuple[int | None, int | None], Homogeneity] = defaultdict(Homogeneity)
    for (prompt, position), node in found.items():
        by_place[None, position] += node
        if position > 1:
            by_place[prompt, None] += node

    tested = {place: node for place, node in by_place.items() if node.freedom}
    limit = (FALSE_ALARMS - _POOLED) / max(1, len(tested))
    places = [
        Place(prompt, position, node.p)
        for (prompt, position), node in sorted(tested.items(), key=lambda item: item[1].p)
        if node.p < limit
    ]

    first = [place for place in places if place.position == 1]
    return SampledComparison(
        prompts=len(one),
        samples=min((len(outputs) for outputs in (*one, *other)), default=0),
        choices=pooled.freedom,
        p=pooled.p,
        noticeable=pooled.noticeable(_POOLED),
        differs=pooled.p < _POOLED or bool(places),
        first_differs=bool(first),
        places=tuple(places),
    )


def _nodes(
    one: Sequence[Sequence[Tokens]], other: Sequence[Sequence[Tokens]]
) -> Mapping[Node, Homogeneity]:
    found: dict[Node, Homogeneity] = defaultdict(Homogeneity)
    for prompt, outputs in enumerate(zip(one, other, strict=True), start=1):
        first, second = map(_followers, outputs)
        for beginning in first.keys() & second.keys():
            node = homogeneity(first[beginning], second[beginning])
            found[prompt, len(beginning) + 1] += node
    return found


def _followers(outputs: Iterable[Tokens]) -> Mapping[Tokens, Counter[int]]:
    """What follows each beginning, and how often."""
    found: dict[Tokens, Counter[int]] = defaultdict(Counter)
    for tokens in outputs:
        for place, token in enumerate(tokens):
            found[tokens[:place]][token] += 1
    return found


def samples_for(comparison: SampledComparison, difference: float) -> int | None:
    """About how many samples a prompt and server would show a difference of this size.

    None if nothing could be compared.
    """
    if comparison.noticeable is None:
        return None
    return round(comparison.samples * (comparison.noticeable / difference) ** 2)
