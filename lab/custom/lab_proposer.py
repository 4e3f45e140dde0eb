"""Proposers for method custom (``custom_class`` in vLLM).

Run one with ``lab/serve custom --proposer lab_proposer.Proposer``.

``Proposer`` sees one request at a time. Those below know the chain by what they saw of all
requests; two draft wrong tokens for some of them, as the lab's drafts, which look at the last token
alone, never do.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any


class Proposer:
    """Drafts the most frequent follower of the request's last token.

    At every third call of a request it drafts nothing.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._tokens = vllm_config.speculative_config.num_speculative_tokens
        self._calls = 0

    def load_model(self, *_: Any, **__: Any) -> None:
        """Does nothing: there is no model."""

    def propose(
        self,
        sampled_token_ids: Sequence[Any],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """The draft for each request of the batch."""
        self._calls += 1
        drafts: list[list[int]] = []
        for place, sampled in enumerate(sampled_token_ids):
            tokens = token_ids_cpu[place, : num_tokens_no_spec[place]]
            drafts.append(self._draft(tokens.tolist(), place) if sampled else [])
        return drafts

    def _draft(self, tokens: list[int], place: int) -> list[int]:
        if (self._calls + place) % 3 == 0:
            return []

        followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for token, follower in pairwise(tokens):
            followers[token][follower] += 1

        draft = list[int]()
        last = tokens[-1]
        while len(draft) < self._tokens and followers[last]:
            ((last, _),) = followers[last].most_common(1)
            draft.append(last)

        return draft


class Knowing(Proposer):
    """Drafts the most frequent follower in all requests so far.

    Where ``_is_weak``, it drafts a token that seldom follows.
    """

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._engine: int = vllm_config.parallel_config.data_parallel_index
        self._followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._seen: dict[int, int] = {}  # by place, tokens of the request there

    def _is_weak(self, tokens: Sequence[int]) -> bool:
        return False

    def _draft(self, tokens: list[int], place: int) -> list[int]:
        known = self._seen.get(place, 0)
        # a shorter one is another request
        new = tokens[max(known - 1, 0) :] if known < len(tokens) else tokens
        self._seen[place] = len(tokens)
        for token, follower in pairwise(new):
            self._followers[token][follower] += 1

        draft = list[int]()
        last = tokens[-1]
        while len(draft) < self._tokens and self._followers[last]:
            common = self._followers[last].most_common()
            last, _ = common[-1] if self._is_weak(tokens) else common[0]
            draft.append(last)

        return draft


class WeakOnLongPrompts(Knowing):
    """Drafts badly for requests of more than 500 tokens."""

    def _is_weak(self, tokens: Sequence[int]) -> bool:
        return len(tokens) > 500


class WeakOnOneEngine(Knowing):
    """Drafts badly on the second engine of a data-parallel vLLM."""

    def _is_weak(self, tokens: Sequence[int]) -> bool:
        return self._engine == 1
