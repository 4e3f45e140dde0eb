"""``report``: a table by temperature from a running sidecar or a recording, to paste into a ticket."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from sidecar.commands.arguments import base_url
from sidecar.commands.report.render import as_markdown, as_text
from sidecar.commands.running_sidecar import own_url, sidecar_status
from sidecar.errors import NotAnExposition, ScrapeError
from sidecar.export.declaration import Shown
from sidecar.export.status import status
from sidecar.log import redacted
from sidecar.recording.replay import replay
from sidecar.settings import Settings

HELP = "print a table by temperature of a running sidecar or a recording, for a ticket"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``report``."""
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--url", type=base_url, help="a running sidecar (default: this machine's, at SPECDEC_LISTEN)")
    origin.add_argument("--recording", type=Path, metavar="DIR", help="a recording, as `record` writes it")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0, or 1 if the sidecar does not answer.

    Raises:
        RecordingError: the recording cannot be read.
    """
    if arguments.recording is not None:
        replayed = status(Shown(replay(arguments.recording, settings), settings))
        return _print(replayed, f"recording {arguments.recording}", arguments.format)
    url: str = arguments.url or own_url(settings)
    origin = redacted(url)
    try:
        # This machine's own certificate is for other names than this address.
        return _print(asyncio.run(sidecar_status(url, tls=arguments.url is not None)), origin, arguments.format)
    except ScrapeError as error:
        remedy = "set --url to the address of a running sidecar, not of vLLM"
        print(f"no report from {origin} ({error.reason}): {error}; {remedy}", file=sys.stderr)
        return 1


def _print(found: dict[str, Any], origin: str, form: str) -> int:
    """Prints a sidecar's JSON.

    Raises:
        NotAnExposition: it is something else.
    """
    try:
        lines = list((as_markdown if form == "markdown" else as_text)(found, origin))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotAnExposition("the status is not one of a specdec-sidecar of this version") from error
    print(json.dumps(found, indent=2, allow_nan=False) if form == "json" else "\n".join(lines))
    return 0
