"""Requests for ``baseline --load``: level by level of concurrency, in several rounds."""

import asyncio
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from sidecar.commands.sweep.client import Client
from sidecar.commands.sweep.options import MOST_AT_ONCE, SweepOptions
from sidecar.commands.sweep.sweep import SweepError
from sidecar.errors import SettingsError
from sidecar.requests.observe.endpoint import Endpoint
from sidecar.requests.record import Outcome

_ROUNDS: Final = 3  # of all levels, so that a machine that drifts does not look like one that slows down under load
_TEMPERATURE: Final = 0.7  # plain decoding takes the same time at any
_AFTER_FAILURE: Final = 0.5  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """``at_once`` are the numbers of requests at once.

    Raises:
        SettingsError: one is out of range.
    """

    url: str
    at_once: Sequence[int]
    prompts: Sequence[str]
    max_tokens: int
    endpoint: Endpoint
    model: str | None = None

    def __post_init__(self) -> None:
        if not all(1 <= one <= MOST_AT_ONCE for one in self.at_once):
            raise SettingsError([f"--load: write one or more numbers from 1 to {MOST_AT_ONCE}"])


async def send(load: LoadOptions, seconds: float, *, tls: ssl.SSLContext | bool) -> None:
    """Sends requests for ``seconds``, divided equally among the levels.

    Raises:
        SweepError: the server does not answer as an OpenAI-style one.
    """
    options = SweepOptions(url=load.url, endpoint=load.endpoint, request_seconds=max(seconds, 60.0), tls=tls)
    async with Client(load.url, options) as client:
        model = load.model or await client.model()
        if model is None:
            raise SweepError(f"--url: no model under /v1/models ({client.last_fault}); is it a vLLM? Or give --model")
        record = await client.ask(model, load.prompts[0], _TEMPERATURE, 2)
        if record.outcome is not Outcome.COMPLETED:
            raise SweepError(f"--url: a request for {model} failed: {client.last_fault}")
        prompts = cycle(load.prompts)

        async def worker() -> None:
            while True:
                record = await client.ask(model, next(prompts), _TEMPERATURE, load.max_tokens)
                if record.outcome is not Outcome.COMPLETED:
                    await asyncio.sleep(_AFTER_FAILURE)

        levels = sorted(set(load.at_once)) * _ROUNDS
        for at_once in levels:
            print(f"{at_once} at once", file=sys.stderr)
            tasks = [asyncio.create_task(worker()) for _ in range(at_once)]
            await asyncio.sleep(seconds / len(levels))
            for task in tasks:  # everything decoded so far has been counted
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
