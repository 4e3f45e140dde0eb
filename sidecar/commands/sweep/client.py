"""One server's client: sends requests and keeps what a request source would keep, but never their text."""

from itertools import count
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from sidecar.commands.sweep.options import SweepOptions
from sidecar.errors import MeasurementError
from sidecar.requests.observe.endpoint import CHAT
from sidecar.requests.observe.exchange_observer import ExchangeObserver
from sidecar.requests.record import Outcome, RequestRecord

_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
_MOST_MODELS: Final = 1024 * 1024  # bytes of `/v1/models`


class Client:
    """Streams every response, to time the first token; use it in ``async with``.

    ``argument`` is the command-line argument that names the server, for error messages.
    """

    def __init__(self, argument: str, url: str, options: SweepOptions) -> None:
        self.argument = argument
        self._url = url.rstrip("/").removesuffix("/v1")
        self._options = options
        self._numbers = count(1)
        headers = {"Accept-Encoding": "identity"}
        if options.api_key is not None:
            headers["Authorization"] = f"Bearer {options.api_key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, ssl=options.tls),
            timeout=aiohttp.ClientTimeout(total=options.request_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self.model = options.model or ""  # the one to request, known once connected
        self.last_fault = ""  # of the last failed request: a status or an error's class

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def connect(self, prompt: str) -> None:
        """Finds the model, the first that the server names if the options have none, and asks it for one token.

        Raises:
            MeasurementError: the server names no model, or the request fails.
        """
        self.model = self.model or await self._first_model()
        if not self.model:
            fault = f"no model under /v1/models ({self.last_fault})"
            raise MeasurementError(f"{self.argument}: {fault}; is it a vLLM? Or give --model")
        if (await self.ask(prompt, 0.0, 1)).outcome is not Outcome.COMPLETED:
            raise MeasurementError(f"{self.argument}: a request for {self.model} failed: {self.last_fault}")

    async def _first_model(self) -> str:
        try:
            async with self._session.get(f"{self._url}/v1/models", allow_redirects=False) as response:
                if response.status != 200:
                    self.last_fault = f"status {response.status}"
                    return ""
                body = b""
                while len(body) < _MOST_MODELS and (piece := await response.content.readany()):
                    body += piece
                found = msgspec.json.decode(body, type=_Models)
        except (*_FAILURES, msgspec.DecodeError) as error:
            self.last_fault = type(error).__name__
            return ""
        return found.data[0].id if found.data else ""

    async def ask(self, prompt: str, temperature: float, max_tokens: int) -> RequestRecord:
        """Sends one request and reads its response; the record's outcome says if it failed."""
        options = self._options
        observer = ExchangeObserver(str(next(self._numbers)), options.endpoint)
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.endpoint == CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        encoded = msgspec.json.encode(body)
        observer.request_end(encoded)
        try:
            await self._exchange(observer, encoded)
        except _FAILURES as error:
            self.last_fault = type(error).__name__
        return observer.finish()

    async def _exchange(self, observer: ExchangeObserver, body: bytes) -> None:
        url = self._url + observer.endpoint
        headers = {"Content-Type": "application/json"}
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                self.last_fault = f"status {response.status}"
            # Redirects are not followed: prompts go only to the named server.
            observer.reply_head(response.status if response.status == 200 else 500, response.raw_headers)
            async for piece in response.content.iter_any():
                observer.reply_piece(piece)
            observer.reply_end()


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]
