"""``compare``: the effect of a change, from two saved sweeps."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from sidecar.commands.arguments import share_of_one
from sidecar.settings import Settings
from specdec_tools.measuring.comparison import compare, comparison_text, gate
from specdec_tools.measuring.sweep_result import read_saved

HELP = (
    "compare two saved sweeps, before and after a change: differences, their errors and a verdict"
)
_OUTCOMES: Final = {0: "passed", 1: "failed", 3: "undecided"}  # of --fail-if-slower, by exit code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``compare``."""
    parser.add_argument(
        "before", type=Path, metavar="A.json", help="a file written by `sweep --save`"
    )
    parser.add_argument("after", type=Path, metavar="B.json", help="another one, to compare with A")
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")

    swapped = (
        "a second sweep of both with the servers swapped between two machines (`sweep --swap`)"
    )
    parser.add_argument(
        "--swapped", type=Path, nargs=2, metavar=("A2.json", "B2.json"), help=swapped
    )

    slower = (
        "such as 5%%: exit with 1 if median TTFT, median TPOT or tokens/s is slower by that much"
        " at the least, with 3 if the sweeps cannot rule it out at every level"
    )
    parser.add_argument("--fail-if-slower", type=share_of_one, metavar="SHARE", help=slower)


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Returns 0, 1 or 3 by ``--fail-if-slower``; 2 if no level can be compared.

    Raises:
        InputError: a file cannot be used.
    """
    names = (str(arguments.before), str(arguments.after))
    swapped = None
    if arguments.swapped is not None:
        before, after = map(read_saved, arguments.swapped)
        swapped = (before, after)
    comparison = compare(
        read_saved(arguments.before), read_saved(arguments.after), names=names, swapped=swapped
    )
    if arguments.json:
        print(json.dumps(asdict(comparison), indent=2, allow_nan=False))
    else:
        print("\n".join(comparison_text(comparison)))

    if not comparison.changes:
        return 2
    if arguments.fail_if_slower is None:
        return 0

    code, lines = gate(comparison, arguments.fail_if_slower)
    print("\n".join((f"--fail-if-slower: {_OUTCOMES[code]}", *lines)), file=sys.stderr)
    return code
