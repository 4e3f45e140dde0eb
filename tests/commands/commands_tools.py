"""Runs a command in this process, as ``main`` does, except for logging."""

from pathlib import Path

from sidecar.cli import parser, run_command
from sidecar.commands.plain.measured import BaselineRun
from sidecar.recording.recording import read_scrapes
from sidecar.settings import load_settings

LEVELS = Path(__file__).parent.parent / "data" / "levels"


def command(*argv, **environment):
    """The exit code; ``capsys`` captures the output."""
    settings = load_settings(
        None, {f"SPECDEC_{name}": value for name, value in environment.items()}
    )
    return run_command(parser(argv).parse_args(argv), settings)


def watched(scrapes):
    """What ``baseline`` would have measured at these polls."""
    measured = BaselineRun()
    for scrape in scrapes:
        measured.scraped(scrape.at, scrape.duration, 0.0, scrape.snapshot)
    return measured


async def measured_plain(*_, **__):
    """What ``baseline`` would have measured while the levels without speculation were recorded."""
    return watched(read_scrapes(LEVELS / "plain"))
