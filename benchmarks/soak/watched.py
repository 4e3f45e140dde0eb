"""The sidecar, with its loop's tasks counted: ``python -m benchmarks.soak.watched INTERVAL``.

It prints the address of its page, then the number of tasks every second. Settings come from the environment, but
``INTERVAL`` (seconds between polls) may be shorter than the settings allow, since time is compressed.
"""

import asyncio
import os
import sys

import uvloop

from sidecar.app import running
from sidecar.commands.stopping import stop_on_signals, stopped
from sidecar.log import configure_logging
from sidecar.settings import load_settings


async def main(interval: float) -> None:
    stop = stop_on_signals()
    settings = load_settings(None, os.environ).model_copy(update={"scrape_interval": interval})
    configure_logging("warning", "json", sys.stderr)
    async with running(settings) as address:
        print(address, flush=True)
        while not stop.is_set():
            await stopped(stop, 1.0)
            print(len(asyncio.all_tasks()), flush=True)
    print(len(asyncio.all_tasks()) - 1, flush=True)  # all but this one


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1])))
