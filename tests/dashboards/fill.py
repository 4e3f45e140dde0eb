"""``python -m tests.dashboards.fill OUT [STATE ...]``: each state as a Prometheus has it.

``OUT/STATE/prometheus`` is the storage of one that had its last scrape at ``END``: run Prometheus
there with ``--query.lookback-delta=70s`` and look at the state's page with Grafana, at the six
hours until then. ``OUT/truth.json`` has what a reader of the first screen should answer: does it
pay, where does it lose, since when, and what to do first. A state takes a minute, 200 pods ten.
"""

import argparse
import json
import sys
from pathlib import Path

from tests.dashboards.reading import backfill
from tests.dashboards.states import END, STATES


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("states", nargs="*", metavar="STATE", help=f"one of {', '.join(STATES)}")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.states if name not in STATES]:
        parser.error(f"no such state: {', '.join(unknown)}")

    states = [STATES[name] for name in arguments.states] or list(STATES.values())
    if there := [state.name for state in states if (arguments.out / state.name).exists()]:
        parser.error(f"already there: {', '.join(there)}")

    for state in states:
        folder = arguments.out / state.name
        folder.mkdir(parents=True)
        backfill(folder, state.samples())
        (folder / "samples").unlink()
        print(state.name, state.page, f"until {END}", file=sys.stderr)  # noqa: T201 - a script
    truth = {state.name: state.truth for state in states}
    text = json.dumps(truth, indent=2, ensure_ascii=False)
    (arguments.out / "truth.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
