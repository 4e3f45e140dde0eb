"""A recorder for tests, what it wrote, read independently, and recordings written by hand."""

import gzip
import json
from contextlib import closing

import structlog

from specdec_tools.recording.recording import Recorder

PAGE = """# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 12
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 9
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 5
"""


def lines_of(folder, name):
    with gzip.open(folder / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def write(folder, name, lines):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def recorder(folder, max_bytes=10**9):
    """For a ``with`` block."""
    return closing(Recorder(folder, max_bytes=max_bytes, log=structlog.get_logger()))
