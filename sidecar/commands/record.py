"""``record``: the sidecar as ``run`` has it, and all that it sees written down, to be looked into later."""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path

import structlog
import uvloop

from sidecar import wiring
from sidecar.app import running
from sidecar.engine.fetch import Fetcher
from sidecar.engine.page_source import PageSource
from sidecar.errors import ListenError, ScrapeError
from sidecar.recording.recorder import Recorder
from sidecar.settings import Settings
from sidecar.settings.field_types import parse_duration

_LONGEST = 24 * 3600.0  # seconds
_GIGABYTE = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``record`` takes."""
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where to put the recording")
    parser.add_argument("--duration", metavar="TIME", help="stop after this long, such as 10m (default: until Ctrl-C)")
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=_GIGABYTE,
        metavar="N",
        help="write no more than this; the sidecar then goes on without (default: 1000000000)",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 when stopped, 1 where an address or the directory can't be had, 2 for settings that record nothing."""
    if settings.requests.source == "none":
        print(
            "there is no request source to record; set SPECDEC_REQUESTS__SOURCE to proxy, middleware or traces",
            file=sys.stderr,
        )
        return 2
    try:
        seconds = parse_duration(arguments.duration, 1, _LONGEST) if arguments.duration else None
    except ValueError as error:
        print(f"--duration={arguments.duration}: {error}", file=sys.stderr)
        return 2
    if arguments.max_bytes < 1:
        print(f"--max-bytes={arguments.max_bytes}: write a number of bytes above 0", file=sys.stderr)
        return 2
    recorder = Recorder(arguments.out, max_bytes=arguments.max_bytes, log=structlog.get_logger("sidecar"))
    # Only whole pages go into a recording; the sidecar's share of vLLM's processor stays what it is.
    whole = settings.model_copy(update={"scrape_filtered": False})
    try:
        uvloop.run(_run(whole, recorder, seconds))
    except (ListenError, OSError) as error:
        print(_problem(error, arguments.out), file=sys.stderr)
        return 1
    print(
        f"{recorder.requests} requests and {recorder.scrapes} pages in {arguments.out}, {recorder.written:,} bytes; "
        f"{recorder.dropped} lost to a slow disk. Look at them: specdec-sidecar replay {arguments.out}"
    )
    return 0


def _problem(error: ListenError | OSError, out: Path) -> str:
    if isinstance(error, ListenError):
        return str(error)
    if isinstance(error, FileExistsError):
        return f"--out={out}: {error.filename} is there already; name another directory"
    return f"--out={out}: {error.strerror or error}; name a directory that can be written"


async def _run(settings: Settings, recorder: Recorder, seconds: float | None) -> None:
    stopped = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stopped.set)
    async with recorder:
        async with running(settings, recorder):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), seconds)
        await _last_page(settings, recorder)


async def _last_page(settings: Settings, recorder: Recorder) -> None:
    """One more page once no request comes through any more, so that the counters hold all that was recorded."""
    fetcher = Fetcher(settings.vllms[0].vllm_url, wiring.fetch(settings))
    source = PageSource(fetcher, wiring.page_limits(settings), filtered=False)
    started = time.time()
    with contextlib.suppress(ScrapeError):
        await source.next()
        recorder.page(started, time.time(), source.whole_page)
    await fetcher.close()
