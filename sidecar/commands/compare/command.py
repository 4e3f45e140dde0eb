"""``compare``: the effect of a change, from two or more saved sweeps."""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from sidecar.commands.arguments import file_to_write, share, written
from sidecar.commands.compare.comparison import Comparison, compare
from sidecar.commands.compare.html import html
from sidecar.commands.compare.render import Gate, as_json, gate, text
from sidecar.commands.sweep.results import load
from sidecar.settings import Settings

HELP = "compare saved sweeps: before and after a change, with differences, their error and a verdict"
_CODES: Final = {Gate.PASSED: 0, Gate.FAILED: 1, Gate.UNDECIDED: 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``compare``."""
    parser.add_argument("before", type=Path, metavar="A.json", help="a file written by `sweep --save`")
    parser.add_argument("after", type=Path, nargs="+", metavar="B.json", help="each is compared with A")
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.add_argument("--html", type=file_to_write, metavar="FILE", help="also write a page with charts")
    parser.add_argument(
        "--fail-if-slower",
        type=share,
        metavar="SHARE",
        help="such as 5%%: exit with 1 if TTFT, TPOT or tokens/s at the median is shown to be slower by that much, "
        "with 3 if the sweeps are not precise enough to exclude it",
    )


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Returns 0, 1 or 3 by ``--fail-if-slower``; 2 if no level can be compared or ``--html`` cannot be written.

    Raises:
        InputError: a file cannot be used.
    """
    before, after = load(arguments.before), [(str(path), load(path)) for path in arguments.after]
    found = [
        compare(before, other, names=(str(arguments.before), name), comparisons=len(after)) for name, other in after
    ]
    if arguments.json:
        print(json.dumps([as_json(one) for one in found], indent=2, allow_nan=False))
    else:
        print("\n\n".join("\n".join(text(one)) for one in found))
    if arguments.html is not None:
        content = html(before, [(one, other) for one, (_, other) in zip(found, after, strict=True)])
        if not written("--html", arguments.html, lambda: arguments.html.write_text(content)):
            return 2
    if not all(one.differences for one in found):
        return 2
    return 0 if arguments.fail_if_slower is None else _gated(found, arguments.fail_if_slower)


def _gated(found: list[Comparison], limit: float) -> int:
    outcome, lines = gate(found, limit)
    for line in (f"--fail-if-slower: {outcome}", *lines):
        print(line, file=sys.stderr)
    return _CODES[outcome]
