"""What the plug-in adds to vLLM's own scheduler: ``python -m benchmarks.plugin --schedulers``.

Bare, with this plug-in, and with another version of it, in turns in one process: by the CPU time
of the thread in ``update_from_output``, at the 10th percentile, since whatever else the machine
does is not the plug-in's cost. No packet is read: a step with a report is one that sends something.

The measuring itself runs in the lab's Python, which has vLLM.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from lab.classes import environment
from lab.installation import ROOT, installed

SIZES = (1, 8, 64, 256, 1024)
FEWER_KEYS_TOLD = (64, 256)  # of these sizes one combination of keys a request must cost less


def scheduler_rows(beside: Path, version: str | None = None) -> Iterator[Row]:
    """A row for each load and bar; ``version`` of vLLM is the lab's, or one of ``lab/classes``."""
    with tempfile.TemporaryDirectory(prefix="specdec") as folder:
        socket = Path(folder, "s")
        measured = {
            place: _measure(beside, version, place, socket) for place in ("sidecar", "none")
        }

    for place, found in measured.items():
        where = "with a sidecar" if place == "sidecar" else "without a sidecar"
        for keys in ("few", "many"):
            for size in SIZES:
                yield from _step_rows(found["steps"][f"{keys} {size}"], keys, size, where)
        yield _most("a round with nothing to do", where, found["round"], 5)
        yield _most("a request of ten tokens alone", where, found["alone"], 170)
        yield from _end_rows(found["ends"], where)

    yield from _without(measured)


def _measure(beside: Path, version: str | None, place: str, socket: Path) -> dict[str, Any]:
    lab = installed()
    command = [str(lab.venv / "bin/python"), "-m", "benchmarks.plugin.turns"]
    plugin = ROOT / "sidecar/requests/plugin.py"
    sizes = os.environ.get("SIZES", ",".join(map(str, SIZES)))
    done = subprocess.run(
        [*command, str(plugin), str(beside.absolute()), place, str(socket), sizes],
        env=environment(lab, version or lab.version),
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _step_rows(found: dict[str, Any], keys: str, size: int, where: str) -> Iterator[Row]:
    bare, own, other = (found[name]["step"] for name in ("bare", "own", "other"))
    kind = "few keys" if keys == "few" else "a combination of keys a request"
    name = f"a step of {size:,}, {kind}, {where}"
    at_most = 1.05 if keys == "few" else 0.6 if size in FEWER_KEYS_TOLD else 1.0
    each = f"{(own - bare) / size:.2f} µs a request"
    what = (
        f"bare {bare:.0f} µs, + {own - bare:.0f} ({each}), the other version + {other - bare:.0f}"
    )
    yield Row(name, what, (own - bare) / (other - bare), at_most=at_most, unit="x")

    report = found["own"]["report"]
    if report is not None:
        limit = max(0.3 * bare, 150)
        what = f"p10 + {report - bare:.0f} µs, the longest step {found['own']['longest']:.0f}"
        yield Row(f"{name}: one with a report", what, report - bare, at_most=limit, unit="µs")


def _most(name: str, where: str, found: dict[str, float], at_most: float) -> Row:
    added = found["own"] - found["bare"]
    what = f"bare {found['bare']:.0f} µs, the other version + {found['other'] - found['bare']:.1f}"
    return Row(f"{name}, {where}", what, added, at_most=at_most, unit="µs")


def _end_rows(found: dict[str, dict[str, float]], where: str) -> Iterator[Row]:
    for name, taken in found.items():
        way = name.partition(": ")[0]
        text = found[f"{way}: text"]
        theirs = text["other"] - text["bare"]
        added = taken["own"] - taken["bare"]
        bare = f"bare {taken['bare'] / 1000:.0f} ms, + {added / 1000:.1f}"
        what = f"{bare}, the other version on text + {theirs / 1000:.1f}"
        yield Row(f"1,024 ends by {name}, {where}", what, added / theirs, at_most=1.5, unit="x")


def _without(measured: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Without a sidecar nothing may cost more than with one; a tenth is what two runs differ by."""
    alone = {place: found["alone"] for place, found in measured.items()}
    with_one, without = (
        alone[place]["own"] - alone[place]["bare"] for place in ("sidecar", "none")
    )
    what = f"a request alone + {without:.0f} µs, with one + {with_one:.0f}"
    yield Row("without a sidecar ÷ with one", what, without / with_one, at_most=1.1, unit="x")


if __name__ == "__main__":
    sys.exit("run it by: python -m benchmarks.plugin --schedulers --beside FILE")
