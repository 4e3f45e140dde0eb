"""Packets like those that the plug-in sends; nothing here is taken from the code under test."""

import json
from typing import Any

HELLO: dict[str, Any] = {
    "plugin": "0.1", "vllm": "0.32.0", "model": "m", "engine": 0, "server": "a1b2", "start": "5f",
    "started": 1.7e9, "own": ["update_from_output"], "full": False,
    "state": "observing", "reason": "",
    "speculation": {
        "method": "ngram", "num_speculative_tokens": 3, "per_batch_size": False,
        "adaptive_verification": False, "rejection_sample_method": None, "schedule": [[1, 4, 3]],
        "draft_sample_method": "greedy",
    },
    "configuration": {"max_num_seqs": 64, "quantization": "fp8", "model_runner_v2": None},
}  # fmt: skip

STRUCTURED, FILTERED, PENALTIES, MIN_P, LOGIT_BIAS, OWN = 1, 2, 4, 8, 16, 32

# Requests stopped, at their length, repeating, aborted and with an error; then drafts with 0 to 3
# tokens, and those of which 0 to 3 were accepted.
WARM = [1, 2, 0, 3, 4, 0, 0, 0, 6, 0, 2, 2, 2]  # 6 drafts, 12 of 18 tokens accepted
HOT = [2, 0, 0, 0, 1, 0, 0, 0, 4, 0, 1, 2, 1]  # 4 drafts, 8 of 12
CELLS: list[Any] = [
    [70, FILTERED, 7, "tenant", WARM],
    [201, 0, None, None, HOT],  # one past the limit on combinations
]
STEPS: dict[str, Any] = {
    "steps": 10,
    "seconds": 0.5,
    "decodes": 80,
    "request_seconds": 4,
    "tokens": 100,
    "prefill_tokens": 70,
    "context_tokens": 4000,
    "drafts": 75,
}
STEP_CELLS: list[Any] = [[8, 5, True, [*STEPS.values()]]]
END: dict[str, Any] = {
    "at": 1.7e9,
    "steps": 40,
    "generation_tokens": 60,
    "running": 3,
    "waiting": 2,
    "lost": 0,
    # Requests by outcome as above, then drafts, draft tokens and accepted tokens.
    "endings": {
        "normal": [2, 2, 0, 3, 5, 8, 24, 14],
        "loop": [1, 0, 0, 0, 0, 2, 6, 6],
        "empty": [0] * 8,
    },
}
REPORT: dict[str, Any] = {"requests": CELLS, "steps": STEP_CELLS, "finished": [], "end": END}
# In a packet, a finished request is the list of these values.
FINISHED: dict[str, Any] = {
    "temperature": 70, "bits": STRUCTURED | FILTERED | PENALTIES | MIN_P, "adapter": "tenant",
    "prompt_tokens": 100, "cached_tokens": 32, "output_tokens": 53, "outcome": "aborted",
    "ending": "normal", "drafts": 20, "draft_tokens": 60, "accepted_tokens": 33,
    "arrival": 1.7e9, "first_token": 1.7e9 + 1, "last_token": None,
}  # fmt: skip


def finishing(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A part of a report that has finished requests, and what else is given."""
    return {"finished": [[*request.values()] for request in requests], **more}


def packet(version: int = 4, **parts: Any) -> bytes:
    """A packet with these parts."""
    return json.dumps({"v": version, **parts}).encode()
