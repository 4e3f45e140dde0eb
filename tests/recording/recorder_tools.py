"""A recorder for tests, and what it wrote, read independently."""

import gzip
import json
from contextlib import closing

import structlog

from sidecar.recording.recorder import Recorder


def lines_of(folder, name):
    with gzip.open(folder / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def recorder(folder, max_bytes=10**9):
    """For a ``with`` block."""
    return closing(Recorder(folder, max_bytes=max_bytes, log=structlog.get_logger()))
