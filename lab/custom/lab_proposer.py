"""Proposers for method custom (``custom_class`` in vLLM): ``lab/serve custom --proposer lab_proposer.Proposer``."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any


class Proposer:
    """Drafts the most frequent follower of the request's last token; at every third call of a request, nothing."""

    def __init__(self, vllm_config: Any) -> None:
        self._tokens = vllm_config.speculative_config.num_speculative_tokens
        self._calls = 0

    def load_model(self, *_: Any, **__: Any) -> None:
        """Does nothing: there is no model."""

    def propose(
        self, sampled_token_ids: Sequence[Any], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """The draft for each request of the batch."""
        self._calls += 1
        return [
            self._draft(token_ids_cpu[place, : num_tokens_no_spec[place]].tolist(), place) if sampled else []
            for place, sampled in enumerate(sampled_token_ids)
        ]

    def _draft(self, tokens: list[int], place: int) -> list[int]:
        if (self._calls + place) % 3 == 0:
            return []
        followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for token, follower in pairwise(tokens):
            followers[token][follower] += 1
        draft, last = list[int](), tokens[-1]
        while len(draft) < self._tokens and followers[last]:
            last = followers[last].most_common(1)[0][0]
            draft.append(last)
        return draft
