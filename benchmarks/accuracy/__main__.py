"""``python -m benchmarks.accuracy``: the error of the inference, and what each of its mechanisms contributes.

Prints a row for each recording, then the ablation tables; with ``--sensitivity`` also each constant halved and doubled.
The exit code is 1 if a recording misses its bar: 0.02 for a draft model, 0.05 for n-gram, and somewhat more for those
that ``score`` names.
"""

import sys
from pathlib import Path

from benchmarks.accuracy.ablation import ablations, sensitivities
from benchmarks.accuracy.score import HOLD_OUT, UNTOUCHED, bar, load, recordings, replayed


def main() -> int:
    """Prints the tables."""
    print(
        "| recording | requests | buckets with numbers | coverage | residual | worst bucket "
        "| per request: median | P90 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    missed = False
    for folder in sorted(recordings(), key=lambda folder: list(_GROUPS).index(_group(folder))):
        found = replayed(folder)
        truths = sum(record.acceptance is not None for record in load(folder)[1])
        residual = "-" if found.residual is None else f"{found.residual:.4f}"
        name = f"{folder.name}{_GROUPS[_group(folder)]}"
        print(
            f"| {name} | {truths} | {found.with_rate:.2f} | {found.coverage:.3f} | {residual} | {found.worst:.3f} "
            f"| {found.median:.3f} | {found.p90:.3f} |"
        )
        missed |= found.worst > bar(folder.name)
    tables = [ablations] if "--sensitivity" not in sys.argv else [ablations, sensitivities]
    for table in tables:
        for name, hold_out in (("development", False), ("hold-out", True)):
            print(f"\n{table.__name__.capitalize()}, {name} recordings:\n")
            for line in table(hold_out=hold_out):
                print(line, flush=True)
    return int(missed)


_GROUPS = {"development": "", "hold-out": " (hold-out)", "untouched": " (untouched)"}


def _group(folder: Path) -> str:
    return "untouched" if folder.name in UNTOUCHED else "hold-out" if folder.name in HOLD_OUT else "development"


if __name__ == "__main__":
    sys.exit(main())
