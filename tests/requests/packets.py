"""Packets like those that the plug-in sends; nothing here is taken from the code under test."""

import json
from typing import Any

HELLO: dict[str, Any] = {
    "plugin": "0.1", "vllm": "0.32.0", "model": "m", "engine": 0, "start": "5f", "started": 1.7e9, "state": "observing",
    "reason": "", "speculation": {
        "method": "ngram", "num_speculative_tokens": 3, "per_batch_size": False, "adaptive_verification": False,
        "rejection_sample_method": None,
    },
}  # fmt: skip
TICK: dict[str, Any] = {
    "at": 1.7e9, "lost": 0, "total": [10, 30, 20], "temperature": [
        [70, [1, 2, 3, 4], 6, 18, 12, [6, 6, 6], [6, 4, 2]], ["other", [0, 0, 0, 1], 4, 12, 8, [4, 4, 4], [4, 3, 1]],
    ],
    "prompt": [[7, 11, 10, 30, 20]], "output": [["free", 11, 10, 30, 20]],
    "adapter": [["", 1, 2, 6, 3], ["other", 10, 8, 24, 17]], "steps": [[3, 10, 0.5, 80, 4, 100]],
}  # fmt: skip
DONE: dict[str, Any] = {
    "temperature": 70, "drafts": 20, "draft_tokens": 60, "accepted_tokens": 33, "lengths": [3, 5, 8, 4],
    "prompt_tokens": 100, "cached_tokens": None, "output_tokens": 53, "arrival": 1.7e9, "first_token": 1.7e9 + 1,
    "last_token": None, "outcome": "aborted", "structured": True, "adapter": "tenant", "parameters": ["min_p"],
}  # fmt: skip


def packet(**parts: Any) -> bytes:
    """A packet of version 1 with these parts."""
    return json.dumps({"v": 1, **parts}).encode()
