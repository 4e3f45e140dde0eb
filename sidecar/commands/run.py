"""``run``: poll vLLM and export what it reports."""

import argparse
import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Final

import structlog

from sidecar import __version__
from sidecar.app import running
from sidecar.commands.arguments import add_vllm_url, with_vllm_url
from sidecar.commands.waiting import stop_on_signals, stopped
from sidecar.errors import ListenError
from sidecar.log import Logger, StateLog
from sidecar.memory import return_freed_memory
from sidecar.settings import Settings, load_settings
from sidecar.settings.reload import Reloader

HELP = "poll vLLM and export its metrics until stopped"
_RETRY: Final = 5.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``run``."""
    add_vllm_url(parser)
    parser.add_argument(
        "--ignore-invalid-settings",
        action="store_true",
        help="start with the default of each invalid setting, log it and export"
        " specdec_settings_invalid, instead of exiting with 2; for pods in which vLLM waits for"
        " the sidecar",
    )
    parser.set_defaults(invalid_settings=())


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 after SIGTERM or SIGINT. SIGHUP reloads settings.

    Raises:
        ListenError: it cannot listen on its address. Not with ``--ignore-invalid-settings``: it
            then tries again until it can.
    """
    config: Path | None = arguments.config

    def load() -> Settings:
        return with_vllm_url(load_settings(config, os.environ), arguments.vllm_url)

    log = structlog.get_logger("sidecar")
    reloader = Reloader(
        with_vllm_url(settings, arguments.vllm_url),
        load,
        log,
        config,
        invalid=arguments.invalid_settings,
    )
    return_freed_memory()
    asyncio.run(_run(reloader, log, keeps_trying=arguments.ignore_invalid_settings))
    return 0


async def _run(reloader: Reloader, log: Logger, *, keeps_trying: bool) -> None:
    settings = reloader.settings
    stop = stop_on_signals()
    for problem in reloader.invalid:
        log.error("setting is invalid; its default is in force", problem=problem)

    if settings.web_config_file is not None and settings.web_config_file.is_locked:
        log.error("own pages are locked, except for probes, until web_config_file is valid")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.request)
    listening = StateLog(log)
    while not stop.is_set():
        try:
            await _serve(reloader, stop, log)
        except ListenError as error:
            if not keeps_trying:
                raise
            listening.fault("listen", "cannot listen; trying again", problem=str(error))
            await stopped(stop, _RETRY)


async def _serve(reloader: Reloader, stop: asyncio.Event, log: Logger) -> None:
    settings = reloader.settings
    async with running(settings, reloader=reloader) as address:
        # Otherwise each full collection also walks everything that was imported and stalls the
        # event loop for 20 ms.
        gc.freeze()
        log.info(
            "sidecar started", version=__version__, address=str(address), vllm_url=settings.vllm_url
        )
        await stop.wait()
        log.info("sidecar stopping")
