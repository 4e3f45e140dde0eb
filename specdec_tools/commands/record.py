"""``record``: like ``run``, but also writes everything it sees to files for later analysis."""

import argparse
import asyncio
from contextlib import closing
from pathlib import Path

import structlog

from sidecar.app import running
from sidecar.commands.arguments import add_duration
from sidecar.commands.waiting import stop_on_signals, stopped
from sidecar.errors import InputError, ListenError
from sidecar.settings import Settings
from sidecar.wording.numbers import counted
from specdec_tools.recording.recording import Recorder

HELP = "run the sidecar and record what it sees, without prompts or completions"
_MOST_BYTES = 1_000_000_000  # on disk: about a day of one engine's pages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``record``."""
    parser.add_argument(
        "--out", type=Path, metavar="DIR", required=True, help="where to put the recording"
    )
    add_duration(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 when stopped.

    Raises:
        InputError: the directory cannot be used.
        ListenError: the sidecar cannot listen on its address; nothing is recorded.
    """
    # A recording holds whole pages only; pacing still keeps polling below its share of vLLM's CPU.
    whole = settings.model_copy(update={"scrape_filtered": False})

    try:
        recorder = Recorder(
            arguments.out, max_bytes=_MOST_BYTES, log=structlog.get_logger("sidecar")
        )
        asyncio.run(_run(whole, recorder, arguments.duration))
    except ListenError as error:
        for name in ("scrapes", "plugin"):  # or the next attempt would find a recording there
            (arguments.out / f"{name}.jsonl.gz").unlink(missing_ok=True)
        hint = (
            "if a sidecar is running here, stop it first: "
            "only one process can listen for the plug-in"
        )
        raise ListenError(f"{error}; {hint}") from error
    except OSError as error:
        raise InputError(
            f"--out={arguments.out}: {error.strerror or error}; choose a writable directory"
        ) from error

    print(
        f"recorded {counted(recorder.requests, 'request')} and {counted(recorder.scrapes, 'poll')}"
        f" in {arguments.out}, {recorder.written:,} bytes; "
        f"to analyse them: specdec-sidecar replay {arguments.out}"
    )
    return 0


async def _run(settings: Settings, recorder: Recorder, seconds: float | None) -> None:
    stop = stop_on_signals()
    with closing(recorder):
        async with running(settings, recorder) as address:
            log = structlog.get_logger("sidecar")
            log.info("recording started", address=str(address), vllm_url=settings.vllm_url)
            await stopped(stop, seconds)
