"""``run``: poll vLLM and export what it reports."""

import argparse
import asyncio
import gc
import os
import signal
from pathlib import Path

import structlog

from sidecar import __version__
from sidecar.app import running
from sidecar.commands.waiting import stop_on_signals
from sidecar.memory import return_freed_memory
from sidecar.settings import Settings, load_settings
from sidecar.settings.reload import Reloader

HELP = "poll vLLM and export its metrics until stopped"


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 after SIGTERM or SIGINT. SIGHUP reloads settings.

    Raises:
        ListenError: it cannot listen on its address.
    """
    return_freed_memory()
    asyncio.run(_run(arguments.config, settings))
    return 0


async def _run(config: Path | None, settings: Settings) -> None:
    log = structlog.get_logger("sidecar")
    stop = stop_on_signals()
    reloader = Reloader(settings, lambda: load_settings(config, os.environ), log, config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.request)
    async with running(settings, reloader=reloader) as address:
        # Otherwise each full collection also walks everything that was imported and stalls the
        # event loop for 20 ms.
        gc.freeze()
        log.info(
            "sidecar started", version=__version__, address=str(address), vllm_url=settings.vllm_url
        )
        await stop.wait()
        log.info("sidecar stopping")
