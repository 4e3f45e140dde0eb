"""Asks vLLM whether it is paused: then nothing moves although requests run, and that is fine."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Final, Protocol

from sidecar.engine.fetch import Fetcher
from sidecar.errors import ScrapeError
from sidecar.settings.groups import Scrape

# vLLM serves it only with VLLM_SERVER_DEV_MODE=1, without which nobody can pause it over HTTP
# (0.32, vllm/entrypoints/rl/online/api_router.py). The API server passes the question to the engine
# core, so it stays unanswered while the core hangs.
PATH: Final = "/is_paused"
_TIMEOUT: Final = 5.0  # seconds
_EVERY: Final = 5.0  # seconds from one answer to the next question
_MOST_BYTES: Final = 4096


class Suspicion(Protocol):
    """Decides when vLLM is asked, and takes the answers."""

    @property
    def suspects_stall(self) -> bool:
        """Whether vLLM should be asked now."""

    def answered(self, at: float, *, is_paused: bool) -> None:
        """Takes vLLM's answer; ``at`` is when it came, in Unix seconds."""


class PauseAsker:
    """Asks vLLM whether it is paused, while there is a suspicion that it has stalled.

    ``run`` sends nothing at other times, since each question is a line in vLLM's access log.
    """

    def __init__(
        self,
        scrape: Scrape,
        suspicion: Suspicion,
        *,
        clock: Callable[[], float] = time.time,
        every: float = _EVERY,
    ) -> None:
        """``every``: seconds from one answer to the next question."""
        self._suspicion = suspicion
        self._clock = clock
        self._every = every
        self._fetcher = Fetcher(
            scrape.vllm_url,
            timeout=_TIMEOUT,
            page_bytes=_MOST_BYTES,
            tls=scrape.tls if scrape.vllm_cert_file else scrape.tls(),
            is_persistent=False,
        )

    async def run(self) -> None:
        """Asks until it is cancelled."""
        try:
            while True:
                if self._suspicion.suspects_stall:
                    is_paused = await self.ask()
                    self._suspicion.answered(self._clock(), is_paused=is_paused)
                await asyncio.sleep(self._every)
        finally:
            await self._fetcher.close()

    async def ask(self) -> bool:
        """Whether vLLM says that it is paused; without an answer, False."""
        try:
            answer = json.loads(await self._fetcher.get(PATH))
        except (ScrapeError, ValueError, RecursionError):
            return False
        return isinstance(answer, dict) and answer.get("is_paused") is True
