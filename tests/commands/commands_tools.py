"""Runs a command in this process, as ``main`` does, except for logging."""

from pathlib import Path

from sidecar.cli import parser, run_command
from sidecar.settings import load_settings
from sidecar.settings.baselines import PlainStepTimes
from specdec_tools.plain.measured import BaselineRun
from specdec_tools.recording.recording import read_scrapes

LEVELS = Path(__file__).parent.parent / "data" / "levels"


def command(*argv, **environment):
    """The exit code; ``capsys`` captures the output."""
    settings = load_settings(
        None, {f"SPECDEC_{name}": value for name, value in environment.items()}
    )
    return run_command(parser(argv).parse_args(argv), settings)


# As fitted to the polls of the recording without speculation, whose prompts have one length.
PLAIN = PlainStepTimes(
    running=(1.0, 2.0, 3.5, 7.3, 13.9),
    seconds=(0.0444, 0.0572, 0.0712, 0.0954, 0.1576),
    context=142.0,
    contexts=(100.0, 200.0),
    context_seconds=(0.0,) * 5,
    prefill_seconds=0.0006,
    drift=0.05,
)


class Measured(BaselineRun):
    """A measurement that gave these step times."""

    def curves(self):
        return {"lab": PLAIN}


def watched(scrapes):
    """What ``baseline`` would have measured at these polls."""
    measured = Measured()
    for scrape in scrapes:
        measured.scraped(scrape.at, scrape.duration, 0.0, scrape.snapshot)
    return measured


async def measured_plain(*_, **__):
    """What ``baseline`` would have measured while the levels without speculation were recorded."""
    return watched(read_scrapes(LEVELS / "plain"))
