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

from benchmarks.core.process import LISTEN, cpu_seconds, get, rss_mib, sidecar_process
from benchmarks.table import Row
from sidecar.requests.messages import MAX_PACKET_BYTES, VERSION

_SENDERS = 32
_CELLS = 64
_NUMBERS = 2 * 140  # of drafts in each: as many as fit
_SECONDS = 15
_HELLO = {
    "plugin": "0", "vllm": "0", "model": "m", "engine": 0, "started": 0.0, "state": "observing",
    "reason": "", "speculation": None,
}  # fmt: skip


def _largest() -> bytes:
    numbers = [0] * 5 + [100_000] * _NUMBERS
    cells = [[key, 0, 0, None, numbers] for key in range(_CELLS)]
    end = {"at": 1.0, "lost": 0, "endings": {}}
    end |= dict.fromkeys(("steps", "generation_tokens", "running", "waiting"), 1)
    report = {"requests": cells, "steps": [], "finished": [], "end": end}
    text = json.dumps({"v": VERSION, "report": report}, separators=(",", ":")).encode()
    assert MAX_PACKET_BYTES * 0.9 < len(text) <= MAX_PACKET_BYTES
    return text


def _send(path: str) -> None:
    packet, senders = _largest(), []
    for number in range(_SENDERS):
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sender.connect(path)
        sender.send(json.dumps({"v": VERSION, "hello": _HELLO | {"start": str(number)}}).encode())
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
