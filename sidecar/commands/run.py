"""``run``: poll vLLM and export what it says, until told to stop."""

import argparse
import asyncio
import signal

import structlog
import uvloop

from sidecar import __version__
from sidecar.app import running
from sidecar.errors import ListenError
from sidecar.settings import Settings


def run(_arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 after SIGTERM or SIGINT, 1 where an address or a socket to listen on can't be had."""
    return uvloop.run(_run(settings))


async def _run(settings: Settings) -> int:
    log = structlog.get_logger("sidecar")
    stopped = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stopped.set)
    try:
        async with running(settings) as address:
            log.info(
                "specdec-sidecar runs",
                version=__version__,
                listen=str(address),
                vllm_url=[target.vllm_url for target in settings.vllms],
            )
            await stopped.wait()
            log.info("stopping")
    except ListenError as error:
        # A traceback would tell the person nothing more.
        remedy = f"set {error.variable}"
        log.error("can't listen", listen=error.place, problem=error.problem, remedy=remedy)  # noqa: TRY400 - see above
        return 1
    return 0
