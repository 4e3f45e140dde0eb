"""Prompts that were made from one template say less than prompts that differ: they count as one."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final

_WORDS: Final = 3  # at the beginning or the end, that prompts of one template share


def template_numbers(prompts: Sequence[str]) -> Mapping[str, int]:
    """For each prompt, the number of the first one of its template, from 0.

    Prompts that begin or end with the same three words are of one template, whatever the numbers
    and the case of their letters, and so are those that a third one connects. What all prompts have
    in common, such as a system prompt, is left out before, where enough is left of each.
    """
    words = [_words(prompt) for prompt in prompts]
    begin = _common(words)
    end = _common([tuple(reversed(one[begin:])) for one in words])
    if any(len(one) - begin - end < _WORDS for one in words):
        begin = end = 0  # what is left is no prompt, but what one template was filled with

    parents = list(range(len(prompts)))
    seen: dict[tuple[str, tuple[str, ...]], int] = {}
    for number, one in enumerate(words):
        own = one[begin : len(one) - end]
        keys = [("whole", one)]
        if len(own) >= _WORDS:
            keys += [("begin", own[:_WORDS]), ("end", own[-_WORDS:])]
        for key in keys:
            first = seen.setdefault(key, number)
            low, high = sorted((_root(parents, first), _root(parents, number)))
            parents[high] = low

    return {prompt: _root(parents, number) for number, prompt in enumerate(prompts)}


def _words(prompt: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "0", prompt.lower()).split())


def _common(words: Sequence[tuple[str, ...]]) -> int:
    """How many words all begin with; 0 with a single one."""
    if len(set(words)) < 2:
        return 0
    together = zip(*words, strict=False)
    return sum(1 for _ in takewhile(lambda place: len(set(place)) == 1, together))


def _root(parents: list[int], number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = parents[number]
    return number
