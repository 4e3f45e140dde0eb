"""What the plug-in counts in a cell, from the totals that a test wants."""

from collections.abc import Sequence

from sidecar.requests.tally import Outcome

DEPTH = 8  # draft tokens of the longest draft


def numbers(requests: int, drafts: int, draft_tokens: int, accepted_tokens: int) -> tuple[int, ...]:
    """A cell's numbers, in which all drafts are as alike as the totals let them be.

    The requests have stopped.
    """
    assert accepted_tokens <= draft_tokens <= DEPTH * drafts
    ended = [requests if outcome is Outcome.STOPPED else 0 for outcome in Outcome]
    return (*ended, *_by_length(drafts, draft_tokens), *_by_length(drafts, accepted_tokens))


def whole_drafts(
    requests: int, drafts: int, draft_tokens: int, accepted_tokens: int
) -> tuple[int, ...]:
    """The same, but as many drafts as possible are accepted whole, and the others not at all.

    So each position has the acceptance rate of all, and a shorter draft would gain less.
    """
    drafted = _by_length(drafts, draft_tokens)
    accepted = [0] * (DEPTH + 1)
    left = accepted_tokens
    for length in range(DEPTH, 0, -1):
        whole = min(drafted[length], left // length)
        accepted[length] += whole
        left -= whole * length
        if left and whole < drafted[length]:  # one more of them, in part
            accepted[left] += 1
            left = 0

    accepted[0] = drafts - sum(accepted)
    some = numbers(requests, drafts, draft_tokens, accepted_tokens)
    return (*some[: -len(accepted)], *accepted)


def added(some: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """The sum of the numbers of two cells."""
    return tuple(map(sum, zip(some, more, strict=True)))


def _by_length(drafts: int, tokens: int) -> list[int]:
    each, left = divmod(tokens, drafts) if drafts else (0, 0)
    by_length = [0] * (DEPTH + 1)
    by_length[each] += drafts - left
    by_length[min(each + 1, DEPTH)] += left
    return by_length


NOTHING = numbers(0, 0, 0, 0)
