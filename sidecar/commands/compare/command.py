"""``compare``: the effect of a change, from two saved sweeps."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from sidecar.commands.arguments import share
from sidecar.commands.compare.comparison import compare
from sidecar.commands.compare.render import Gate, gate, text
from sidecar.commands.sweep.measured import load
from sidecar.settings import Settings

HELP = "compare two saved sweeps, before and after a change: differences, their errors and a verdict"
_CODES: Final = {Gate.PASSED: 0, Gate.FAILED: 1, Gate.UNDECIDED: 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``compare``."""
    parser.add_argument("before", type=Path, metavar="A.json", help="a file written by `sweep --save`")
    parser.add_argument("after", type=Path, metavar="B.json", help="another one, to compare with A")
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.add_argument(
        "--fail-if-slower",
        type=share,
        metavar="SHARE",
        help="such as 5%%: exit with 1 if median TTFT, median TPOT or tokens/s is significantly slower by that much, "
        "with 3 if the sweeps are not precise enough to rule it out",
    )


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Returns 0, 1 or 3 by ``--fail-if-slower``; 2 if no level can be compared.

    Raises:
        InputError: a file cannot be used.
    """
    found = compare(load(arguments.before), load(arguments.after), names=(str(arguments.before), str(arguments.after)))
    print(json.dumps(asdict(found), indent=2, allow_nan=False) if arguments.json else "\n".join(text(found)))
    if not found.levels:
        return 2
    if arguments.fail_if_slower is None:
        return 0
    outcome, lines = gate(found, arguments.fail_if_slower)
    print("\n".join((f"--fail-if-slower: {outcome}", *lines)), file=sys.stderr)
    return _CODES[outcome]
