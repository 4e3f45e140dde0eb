"""``preflight``: would speculation suit this vLLM's traffic? Answered before it is switched on."""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import Final

from sidecar.commands.arguments import duration
from sidecar.commands.preflight.answers import LEAST_REQUESTS, answers, conclusion
from sidecar.commands.preflight.watch import watch
from sidecar.commands.tables import aligned
from sidecar.settings import Settings
from sidecar.wording.numbers import counted

_UNDECIDED: Final = 3  # exit code
HELP = "watch a vLLM that does not speculate yet, and say whether speculation suits its traffic"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``preflight``."""
    parser.add_argument(
        "--duration",
        type=duration,
        default=300.0,
        metavar="TIME",
        help="watch for this long, or until Ctrl-C (default: 5m)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON rather than text")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints the answers; returns 0, 1 if vLLM already speculates, or 3 if it saw too few requests for an answer.

    Raises:
        MeasurementError: vLLM's first page cannot be read.
    """
    print(f"watching for {arguments.duration:g} s; stop earlier with Ctrl-C", file=sys.stderr)
    found = asyncio.run(watch(settings, arguments.duration))
    lines = [] if found.speculates else answers(found)
    lost = f" ({found.lost} more not counted)" if found.lost else ""
    requests, polls = counted(len(found.requests), "request"), counted(len(found.polls), "poll")
    seen = f"watched for {found.seconds:.0f} s: {requests}{lost}, {polls}"
    if arguments.json:
        content = {"conclusion": conclusion(found, lines), "seen": seen, "lines": [asdict(line) for line in lines]}
        print(json.dumps(content, indent=2, allow_nan=False))
    elif found.speculates:
        print(conclusion(found, lines))
    else:
        rows = [(line.condition, line.answer, line.seen) for line in lines]
        print("\n".join([seen, "", *aligned(("condition", "answer", "observed"), rows, left=(0, 2)), ""]))
        print("The limits are rules of thumb (docs/measure.md); a sweep measures the effect.")
        print(conclusion(found, lines))
    if found.speculates:
        return 1
    return _UNDECIDED if len(found.requests) < LEAST_REQUESTS else 0
