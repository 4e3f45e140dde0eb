"""One request of the sidecar's own to a vLLM that looks idle: does its engine still answer?

An engine that hangs while nothing runs shows no sign of it on its page. Probes are off by default:
nothing else that the sidecar sends makes an engine compute.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import uuid4

import aiohttp
from yarl import URL

from sidecar.log import StateLog
from sidecar.requests.keys import OWN_MARK
from sidecar.settings.groups import Probe, Scrape
from sidecar.tls import client_context, connection_fault

PATH: Final = "/v1/completions"
_EVERY: Final = 1.0  # seconds between two checks whether a probe is due
_MOST_BYTES: Final = 64 * 1024  # of an answer: it has one token
_KEY: Final = "probe"
_API_KEY: Final = "is probe.api_key the key of this vLLM?"
_REMEDIES: Final = {
    401: _API_KEY,
    403: _API_KEY,
    404: "does it serve /v1/completions, and is probe.model one of its models?",
}


class ProbeOutcome(StrEnum):
    """How a probe ended; in ``specdec_probes_total`` the label ``outcome``."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"  # not answered in time, and nothing else moved in the engine
    REFUSED = "refused"  # answered with a status other than 200, or not with a completion
    UNREACHABLE = "unreachable"
    OVERTAKEN = "overtaken"  # not answered in time, but the engine did other work


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Which engine to ask: the model's name, and the data-parallel rank if there are several."""

    model_name: str
    rank: str | None


class ProbeSubject(Protocol):
    """Decides when an engine is probed, and judges the outcome. ``at`` is now, in Unix seconds."""

    def due(self, at: float) -> ProbeTarget | None:
        """The engine to ask now; None if no probe is due."""

    def put_off(self, at: float) -> None:
        """Nothing was sent, since vLLM is paused."""

    def sent(self, at: float) -> None:
        """A request is on its way to the target of ``due``."""

    def ended(self, outcome: ProbeOutcome, seconds: float) -> ProbeOutcome:
        """Takes in how it ended after so many ``seconds``; returns how that is judged."""


class _Refusal(Exception):
    """The message says why; it quotes nothing of the answer."""


class Prober:
    """Asks for one token whenever the subject says that it is time. ``run`` is one task.

    A request is open until it is answered or ``timeout`` seconds have passed: an engine that goes
    on in time still answers it.
    """

    def __init__(
        self,
        scrape: Scrape,
        probe: Probe,
        subject: ProbeSubject,
        is_paused: Callable[[], Awaitable[bool]],
        log: StateLog,
        *,
        timeout: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        every: float = _EVERY,
    ) -> None:
        """``is_paused`` asks vLLM whether it is paused; ``every`` is seconds between two looks."""
        self._scrape = scrape
        self._probe = probe
        self._subject = subject
        self._is_paused = is_paused
        self._log = log
        self._timeout = timeout
        self._clock = clock
        self._monotonic = monotonic
        self._every = every

    async def run(self) -> None:
        """Runs until it is cancelled, which also cancels an open request."""
        while True:
            await self.look()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Sends a request if one is due, and waits for its end."""
        if self._subject.due(self._clock()) is None:
            return

        if await self._is_paused():
            self._subject.put_off(self._clock())
            return

        at = self._clock()
        target = self._subject.due(at)
        if target is None:  # the engine has got work in the meantime
            return

        self._subject.sent(at)
        begun = self._monotonic()
        outcome = ProbeOutcome.UNREACHABLE
        reason = ""
        try:
            outcome, reason = await self._ask(target)
        finally:  # also if it is cancelled
            outcome = self._subject.ended(outcome, self._monotonic() - begun)
        self._say(outcome, reason)

    def _say(self, outcome: ProbeOutcome, reason: str) -> None:
        match outcome:
            case ProbeOutcome.ANSWERED:
                self._log.clear(_KEY, "vLLM answers the sidecar's probe again")
            case ProbeOutcome.OVERTAKEN:
                pass
            case _:
                self._log.fault(_KEY, "vLLM did not answer the sidecar's probe", reason=reason)

    async def _ask(self, target: ProbeTarget) -> tuple[ProbeOutcome, str]:
        """How the request ended, and the reason for the log."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._complete(target)
        except TimeoutError:
            return ProbeOutcome.UNANSWERED, f"no answer within {self._timeout:g} s"
        except _Refusal as error:
            return ProbeOutcome.REFUSED, str(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return ProbeOutcome.UNREACHABLE, connection_fault(error)
        return ProbeOutcome.ANSWERED, ""

    async def _complete(self, target: ProbeTarget) -> None:
        """Requests one token.

        Raises:
            _Refusal: the answer is not a completion.
            aiohttp.ClientError, OSError, ValueError: there is no answer.
        """
        url = URL(self._scrape.vllm_url + PATH)
        tls: ssl.SSLContext | bool = True
        if url.scheme == "https":
            tls = await asyncio.to_thread(self._tls)  # it reads files
        if self._probe.api_key is not None:
            url = url.with_user(None)  # only one of the two credentials can be sent

        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=tls),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # see _ask
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as session,
            session.post(
                url, json=self._body(target), headers=self._headers(target), allow_redirects=False
            ) as response,
        ):
            if response.status != 200:
                remedy = _REMEDIES.get(response.status)
                raise _Refusal(f"status {response.status}" + (f"; {remedy}" if remedy else ""))
            _check(await _read(response))

    def _tls(self) -> ssl.SSLContext:
        return client_context(tls=self._scrape.tls())

    def _body(self, target: ProbeTarget) -> dict[str, Any]:
        return {
            "model": self._probe.model or target.model_name,
            "prompt": self._probe.prompt,
            "max_tokens": 1,
            "temperature": 0.0,
        }

    def _headers(self, target: ProbeTarget) -> dict[str, str]:
        headers = {
            "X-Request-Id": f"{OWN_MARK}{uuid4().hex}",  # vLLM makes it the request's id
            "Accept-Encoding": "identity",
            "User-Agent": "specdec-sidecar",
        }
        if self._probe.api_key is not None:
            headers["Authorization"] = f"Bearer {self._probe.api_key}"
        if target.rank is not None:
            headers["X-data-parallel-rank"] = target.rank
        return headers


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _MOST_BYTES:
            raise _Refusal(f"the answer has more than {_MOST_BYTES} bytes")
    return bytes(body)


def _check(body: bytes) -> None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not answer.get("choices"):
        raise _Refusal("the answer is not a completion; is this vLLM's own address?")
