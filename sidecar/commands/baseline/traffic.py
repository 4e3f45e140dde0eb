"""Requests for ``baseline --load``: level by level of concurrency, in several rounds."""

import asyncio
import sys
from collections.abc import Sequence
from itertools import cycle
from typing import Final

from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.options import SweepOptions
from sidecar.requests.record import Outcome

_ROUNDS: Final = 3  # of all levels, so that a machine that drifts does not look like one that slows down under load
_TEMPERATURE: Final = 0.7  # plain decoding takes the same time at any temperature
_AFTER_FAILURE: Final = 0.5  # seconds


async def send(options: SweepOptions, prompts: Sequence[str]) -> None:
    """Sends requests for ``options.seconds``, divided equally among the loads, all of which are concurrency levels.

    Raises:
        MeasurementError: the server does not answer like an OpenAI-style one.
    """
    async with Client("--url", options.url, options) as client:
        await client.connect(prompts[0])
        turns = cycle(prompts)

        async def worker() -> None:
            while True:
                record = await client.ask(next(turns), _TEMPERATURE, options.max_tokens)
                if record.outcome is not Outcome.COMPLETED:
                    await asyncio.sleep(_AFTER_FAILURE)

        levels = sorted({load.at_once or 1 for load in options.loads}) * _ROUNDS
        for at_once in levels:
            print(f"{at_once} at once", file=sys.stderr)
            tasks = [asyncio.create_task(worker()) for _ in range(at_once)]
            await asyncio.sleep(options.seconds / len(levels))
            for task in tasks:  # everything decoded so far has been counted
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
