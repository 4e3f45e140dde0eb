"""``preflight``: would speculation suit this vLLM's traffic? Answered before it is switched on."""

import argparse
import json
import sys
from dataclasses import asdict

import uvloop

from sidecar import wiring
from sidecar.commands.arguments import duration
from sidecar.commands.preflight.answers import RULES, answers, conclusion, lines_of
from sidecar.commands.preflight.watch import watch
from sidecar.commands.tables import aligned
from sidecar.errors import InputError
from sidecar.settings import Settings

HELP = "watch a vLLM that does not speculate yet, and say whether speculation would suit its traffic"


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
    """Returns 0 with the list answered, 1 if neither a request nor a page arrived.

    Raises:
        InputError: no request source is set.
        ListenError: the request source cannot bind its address.
    """
    if settings.requests.source == "none":
        raise InputError("no request source to watch; set SPECDEC_REQUESTS__SOURCE to proxy, middleware or traces")
    print(f"watching for {arguments.duration:g} s; stop earlier with Ctrl-C", file=sys.stderr)
    found = uvloop.run(watch(settings, arguments.duration))
    lines = answers(found, wiring.buckets(settings), settings.default_temperature)
    verdict = conclusion(found, lines)
    seen = list(lines_of(found))
    if arguments.json:
        content = {"conclusion": verdict, "note": RULES, "seen": seen, "lines": [asdict(line) for line in lines]}
        print(json.dumps(content, indent=2, allow_nan=False))
    else:
        rows = [(line.question, line.answer, line.seen) for line in lines]
        table = aligned(("use it with", "answer", "seen"), rows, left=(0, 2))
        print("\n".join([*seen, "", *table, "", f"note: {RULES}", verdict]))
    return 0 if found.requests or found.polls else 1
