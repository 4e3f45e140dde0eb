"""The programs of the harness: each can be killed, suspended, and started again unchanged."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import aiohttp

_START_SECONDS = 300  # only a broken program needs them


class Program:
    """One program with its own process group and its output in ``log``; it dies with the harness."""

    def __init__(self, log: Path, *command: str, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self._command = ("setpriv", "--pdeathsig", "KILL", *command)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")}
        self._environment = inherited | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it, unless it runs."""
        if self.running:
            return
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to every process of it."""
        if self.running:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """As a pod that dies: all of it at once."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    async def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.send(signal.SIGTERM)
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, 60)

    async def until_answers(self, url: str) -> None:
        """Waits until ``url`` answers with 200. Raises TimeoutError if the program ends or takes too long."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            async with asyncio.timeout(_START_SECONDS):
                while not await answers(session, url):
                    if not self.running:
                        raise TimeoutError(f"it ended while starting; see {self.log}")
                    await asyncio.sleep(0.05)


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether ``url`` answers with 200."""
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
