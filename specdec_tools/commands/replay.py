"""``replay``: feeds a recording to the code of the running sidecar, offline and reproducibly."""

import argparse
import json
from pathlib import Path

from sidecar.errors import InputError
from sidecar.export.declaration import ReportView
from sidecar.export.status import status
from sidecar.settings import Settings
from specdec_tools.commands.sidecar_status import status_lines
from specdec_tools.recording.recording import replay

HELP = "replay a recording and print acceptance by temperature"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``replay``."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a recording, as `record` writes it"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the JSON of /api/v1/status rather than what `report` prints",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0.

    Raises:
        InputError: the recording cannot be read, or none of its pages shows a model.
    """
    report = replay(arguments.directory, settings)
    if not report.models:
        raise InputError(f"{arguments.directory}: no page of the recording shows a model")
    shown = status(ReportView(report, settings))
    lines = status_lines(shown, f"recording {arguments.directory}")
    print(json.dumps(shown, indent=2, allow_nan=False) if arguments.json else "\n".join(lines))
    return 0
