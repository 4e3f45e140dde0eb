"""``report``: a table by temperature from a running sidecar, to paste into a ticket."""

import argparse
import asyncio
import sys

from sidecar.commands.arguments import base_url
from sidecar.commands.sidecar_status import own_url, sidecar_status, status_lines
from sidecar.errors import ScrapeError
from sidecar.log import redacted
from sidecar.settings import Settings

HELP = "print the verdicts and tables of a running sidecar, for a ticket"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``report``."""
    parser.add_argument(
        "--url",
        type=base_url,
        help="a running sidecar (default: this machine's, at SPECDEC_LISTEN)",
    )
    parser.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="default: text"
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0, or 1 if no sidecar answers."""
    url: str = arguments.url or own_url(settings)
    origin = redacted(url)
    try:
        # Without --url, the address is this machine's; the certificate is issued for other names.
        status = asyncio.run(sidecar_status(url, tls=arguments.url is not None))
        print("\n".join(status_lines(status, origin, is_markdown=arguments.format == "markdown")))
    except ScrapeError as error:
        fault = f"{error} ({error.reason})"
    except (AttributeError, LookupError, TypeError, ValueError):
        fault = "its JSON is not from a specdec-sidecar of this version"
    else:
        return 0
    hint = "set --url to the address of a running sidecar, not of vLLM"
    if fault.startswith("status 401 "):
        hint = "it asks for a password: --url http://USER:PASSWORD@HOST:PORT"
    print(f"no report from {origin}: {fault}; {hint}", file=sys.stderr)
    return 1
