"""``report``: the table by temperature of a running sidecar or a recording, for a ticket."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from sidecar import wiring
from sidecar.engine.fetch import FetchOptions
from sidecar.errors import ScrapeError
from sidecar.log import redacted
from sidecar.recording.recording import RecordingError
from sidecar.reporting.of_recording import recording_ticket
from sidecar.reporting.of_sidecar import sidecar_ticket
from sidecar.reporting.show import as_json, as_markdown, text
from sidecar.settings import Settings
from sidecar.settings.addresses import parse_base_url


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``report`` takes."""
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--url", help="a running sidecar (default: the one at the setting listen, on this machine)")
    origin.add_argument("--recording", type=Path, metavar="DIR", help="a recording, as `record` writes it")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0, 1 where there is no answer or the recording can't be read, 2 for a bad URL."""
    try:
        url = parse_base_url(arguments.url or f"http://{settings.listen.local}")
    except ValueError as error:
        print(f"--url={redacted(arguments.url)}: {error}", file=sys.stderr)
        return 2
    try:
        if arguments.recording is not None:
            ticket = recording_ticket(arguments.recording, wiring.buckets(settings), wiring.verdicts(settings))
        else:
            ticket = asyncio.run(sidecar_ticket(url, FetchOptions()))
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 1
    except ScrapeError as error:
        remedy = "write --url with the address of a running sidecar, not of vLLM"
        print(f"no report from {redacted(url)} ({error.reason}): {error}; {remedy}", file=sys.stderr)
        return 1
    if arguments.format == "json":
        print(json.dumps(as_json(ticket), indent=2, allow_nan=False))
    else:
        print("\n".join((text if arguments.format == "text" else as_markdown)(ticket)))
    return 0
