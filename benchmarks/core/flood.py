"""What a crowd of hostile senders at the plug-in's socket costs.

They send the largest valid packets without end.
"""

import json
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.core.process import LISTEN, cpu_seconds, get, rss_mib, sidecar_process
from benchmarks.table import Row
from sidecar.requests.messages import MAX_PACKET_BYTES
from sidecar.requests.tally import MAX_POSITIONS

_SENDERS = 32
_ROWS = 250
_SECONDS = 15
_HELLO = {
    "plugin": "0", "vllm": "0", "model": "m", "engine": 0, "started": 0.0, "state": "observing",
    "reason": "", "speculation": None,
}  # fmt: skip


def _largest() -> bytes:
    positions: dict[str, Any] = {
        "drafted_at": [1] * MAX_POSITIONS,
        "accepted_at": [0] * MAX_POSITIONS,
    }
    counts = {"drafts": 1, "draft_tokens": MAX_POSITIONS, "accepted_tokens": 0} | positions
    rows = [{"key": key, "since": 1.0, "counts": counts} for key in range(_ROWS)]
    total = {"drafts": _ROWS, "draft_tokens": _ROWS * MAX_POSITIONS}
    packet = {"v": 2, "report": {"temperature": rows, "end": {"total": total, "lost": 0}}}
    text = json.dumps(packet, separators=(",", ":")).encode()
    assert len(text) <= MAX_PACKET_BYTES
    return text


def _send(path: str) -> None:
    packet, senders = _largest(), []
    for number in range(_SENDERS):
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sender.connect(path)
        sender.send(json.dumps({"v": 2, "hello": _HELLO | {"start": str(number)}}).encode())
        sender.setblocking(False)
        senders.append(sender)
    while True:
        for sender in senders:
            try:
                sender.send(packet)
            except BlockingIOError:
                time.sleep(0.001)


def flood_rows() -> list[Row]:
    """The longest that the sidecar's own page takes, its CPU time and its memory meanwhile."""
    with tempfile.TemporaryDirectory() as folder, sidecar_process(1, f"{folder}/s") as (_, pid):
        while not Path(folder, "s").exists():
            time.sleep(0.01)
        sender = multiprocessing.get_context("spawn").Process(
            target=_send, args=(f"{folder}/s",), daemon=True
        )
        sender.start()
        time.sleep(2)
        began, before, longest = time.monotonic(), cpu_seconds(pid), 0.0
        while time.monotonic() < began + _SECONDS:
            start = time.monotonic()
            get(f"http://{LISTEN}/-/healthy")
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.005)
        share = (cpu_seconds(pid) - before) / (time.monotonic() - began)
        memory = rss_mib(pid)
        sender.kill()
    size = f"{_SENDERS} senders of packets of {len(_largest()) // 1024} KiB without end"
    return [
        Row(size, "the longest response of /-/healthy", 1e3 * longest, at_most=50, unit="ms"),
        Row(size, f"CPU time, {os.cpu_count()} cores", 100 * share, at_most=40, unit="% of a core"),
        Row(size, "resident memory", memory, at_most=200, unit="MiB"),
    ]
