"""Two hours' worth of polls through everything that keeps state: prints resident MiB after each hour, as JSON."""

import json
import os
import sys

import sidecar.commands.run  # all that the running sidecar imports
from benchmarks.core.pages import later, real_page, with_engines
from benchmarks.core.process import _rss_mib
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.target_state import TargetState
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import PageLimits
from sidecar.engine.snapshot import SnapshotReader
from sidecar.export.collector import ExportOptions, OwnCounts, export_families
from sidecar.export.text import TextRenderer

_HOUR = 3600


def main(engines: int) -> None:
    assert sidecar.commands.run
    page = with_engines(real_page(), engines)
    state = TargetState("vllm", Lookback(), interval=1.0, max_engines=engines)
    reader, snapshots, text = PageReader(names.wanted(), PageLimits()), SnapshotReader(), TextRenderer()
    resident = []
    for poll in range(2 * _HOUR):
        state.scraped(float(poll), 0.002, 1.0, snapshots.read(reader.read(later(page, poll))))
        if poll % 15 == 0:
            text.render(export_families([state.report(float(poll))], OwnCounts(), ExportOptions()))
        if poll % _HOUR == _HOUR - 1:
            resident.append(_rss_mib(os.getpid()))
    print(json.dumps(resident), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
