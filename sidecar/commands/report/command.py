"""``report``: a table by temperature from a running sidecar or a recording, to paste into a ticket."""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from sidecar import wiring
from sidecar.commands.arguments import base_url
from sidecar.commands.report.from_recording import recording_report
from sidecar.commands.report.from_sidecar import sidecar_report
from sidecar.commands.report.render import as_markdown, text
from sidecar.engine.fetch import FetchOptions
from sidecar.errors import ScrapeError
from sidecar.log import redacted
from sidecar.settings import Settings
from sidecar.settings.web_config import read_web_config

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
    web = None if settings.web_config_file is None else read_web_config(settings.web_config_file)
    url: str = arguments.url or f"{'http' if web is None or web.tls is None else 'https'}://{settings.listen.local}"
    # This machine's own certificate is for other names than this address.
    options = FetchOptions(tls=arguments.url is not None)
    try:
        if arguments.recording is not None:
            report = recording_report(
                arguments.recording,
                wiring.buckets(settings),
                wiring.verdicts(settings),
                wiring.plain_curves(settings),
            )
        else:
            report = asyncio.run(sidecar_report(url, options))
    except ScrapeError as error:
        remedy = "set --url to the address of a running sidecar, not of vLLM"
        print(f"no report from {redacted(url)} ({error.reason}): {error}; {remedy}", file=sys.stderr)
        return 1
    if arguments.format == "json":
        print(json.dumps(asdict(report), indent=2, allow_nan=False))
    else:
        print("\n".join((text if arguments.format == "text" else as_markdown)(report)))
    return 0
