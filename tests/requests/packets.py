"""Packets like those that the plug-in sends; nothing here is taken from the code under test."""

import json
from typing import Any

HELLO: dict[str, Any] = {
    "plugin": "0.1", "vllm": "0.32.0", "model": "m", "engine": 0, "start": "5f", "started": 1.7e9,
    "state": "observing", "reason": "",
    "speculation": {
        "method": "ngram", "num_speculative_tokens": 3, "per_batch_size": False,
        "adaptive_verification": False, "rejection_sample_method": None, "schedule": [[1, 4, 3]],
        "draft_sample_method": "greedy",
    },
    "configuration": {"max_num_seqs": 64, "quantization": "fp8", "model_runner_v2": None},
    "tables": ["temperature", "prompt_tokens", "output", "sampling", "adapter", "steps"],
}  # fmt: skip


def counts(stopped=0, drafts=0, draft_tokens=0, accepted_tokens=0, **more: Any) -> dict[str, Any]:
    """A tally."""
    whole = {
        "stopped": stopped,
        "drafts": drafts,
        "draft_tokens": draft_tokens,
        "accepted_tokens": accepted_tokens,
    }
    return whole | more


def row(key: Any, since: float = 1.7e9, **tally: Any) -> dict[str, Any]:
    """A row of a table."""
    return {"key": key, "since": since, "counts": counts(**tally)}


TOTAL = counts(3, 10, 30, 20, length=2, aborted=3, error=5)
END: dict[str, Any] = {
    "total": TOTAL,
    "lost": 0,
    "at": 1.7e9,
    "steps": 40,
    "generation_tokens": 60,
    "running": 3,
    "waiting": 2,
}
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
TABLES: dict[str, Any] = {
    "temperature": [
        row(70, stopped=1, length=2, aborted=3, error=4, drafts=6, draft_tokens=18,
            accepted_tokens=12, drafted_at=[6, 6, 6], accepted_at=[6, 4, 2]),
        row(201, stopped=2, error=1, drafts=4, draft_tokens=12, accepted_tokens=8,
            drafted_at=[4, 4, 4], accepted_at=[4, 3, 1]),
    ],
    "prompt_tokens": [{"key": 7, "since": 1.7e9, "counts": TOTAL}],
    "output": [{"key": "free", "since": 1.7e9, "counts": TOTAL}],
    "sampling": [{"key": "filtered", "since": 1.7e9, "counts": TOTAL}],
    "adapter": [
        row("", stopped=3, drafts=2, draft_tokens=6, accepted_tokens=3),
        row("other", length=2, aborted=3, error=5, drafts=8, draft_tokens=24, accepted_tokens=17),
    ],
    "ending": [row("loop", stopped=1, drafts=2, draft_tokens=6, accepted_tokens=6)],
    "steps": [{"key": [3, 5, True], "since": 1.7e9, "counts": STEPS}],
}  # fmt: skip
REPORT: dict[str, Any] = {"tables": TABLES, "end": END}
REPORT_VERSION_2: dict[str, Any] = {
    **{name: rows for name, rows in TABLES.items() if name != "ending"},
    "steps": [{"key": 3, "since": 1.7e9, "counts": STEPS}],
    "end": {"total": TOTAL, "lost": 0},
}
FINISHED: dict[str, Any] = {
    "temperature": 70, "drafts": 20, "draft_tokens": 60, "accepted_tokens": 33,
    "prompt_tokens": 100, "output_tokens": 53, "arrival": 1.7e9, "first_token": 1.7e9 + 1,
    "last_token": None, "outcome": "aborted", "structured": True, "sampling": "penalties",
    "adapter": "tenant", "parameters": ["min_p"], "cached_tokens": 32, "ending": "normal",
}  # fmt: skip


def finishing(*requests: Any, **more: Any) -> dict[str, Any]:
    """A part of a report that has finished requests, and what else is given."""
    return {"finished": list(requests), **more}


def packet(version: int = 3, **parts: Any) -> bytes:
    """A packet with these parts."""
    return json.dumps({"v": version, **parts}).encode()
