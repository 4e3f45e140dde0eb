"""One server's client: sends requests and keeps their times and counts, but never their text."""

import json
import time
from typing import Any, Final, Self

import aiohttp

from sidecar.commands.sweep.options import ENDPOINTS, RequestOptions
from sidecar.commands.sweep.reply import BadReply, read_reply
from sidecar.commands.sweep.sample import Sample
from sidecar.engine.fetch import read_at_most
from sidecar.errors import MeasurementError
from sidecar.log import redacted

_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError)
_LONGEST_REPLY: Final = 600.0  # seconds
_MOST_MODELS: Final = 1024 * 1024  # bytes of `/v1/models`


class Client:
    """Streams every response to time the first token; use it in ``async with``.

    ``name`` is its address without credentials, for error messages.
    """

    def __init__(self, url: str, options: RequestOptions) -> None:
        self.name = redacted(url)
        self._url = url.rstrip("/").removesuffix("/v1")
        self._options = options
        headers = {"Accept-Encoding": "identity"}
        if options.api_key is not None:
            headers["Authorization"] = f"Bearer {options.api_key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, ssl=options.tls),
            timeout=aiohttp.ClientTimeout(total=_LONGEST_REPLY),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self.model = options.model or ""  # to request; known once connected
        self.last_fault = ""  # of the last failed request: its status or the error's class

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def connect(self, prompt: str) -> None:
        """Finds the model (by default the first that the server names) and requests one token from it.

        Raises:
            MeasurementError: the server cannot be reached or names no model, or the request fails.
        """
        self.model = self.model or await self._first_model()
        if not self.model:
            fault = f"no model under /v1/models ({self.last_fault})"
            raise MeasurementError(f"{self.name}: {fault}; is this vLLM's address? If so, set --model")
        if await self.ask(prompt, 0.0, max_tokens=1) is None:
            raise MeasurementError(f"{self.name}: a request for {self.model} failed: {self.last_fault}")

    async def _first_model(self) -> str:
        try:
            async with self._session.get(f"{self._url}/v1/models", allow_redirects=False) as response:
                if response.status != 200:
                    self.last_fault = f"status {response.status}"
                    return ""
                return str(json.loads(await read_at_most(response, _MOST_MODELS) or b"")["data"][0]["id"])
        except aiohttp.ClientConnectionError as error:
            fault = f"cannot connect ({type(error).__name__})"
            raise MeasurementError(f"{self.name}: {fault}; is vLLM running, and is this its address?") from None
        except (*_FAILURES, LookupError, TypeError) as error:
            self.last_fault = type(error).__name__
            return ""

    async def ask(self, prompt: str, temperature: float, *, max_tokens: int | None = None) -> Sample | None:
        """Sends one request and reads its response; None if it failed, with the reason in ``last_fault``."""
        options = self._options
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": temperature,
            "max_tokens": max_tokens or options.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.endpoint == ENDPOINTS["chat"]:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        try:
            return await self._exchange(body, temperature)
        except BadReply as error:
            self.last_fault = str(error)
        except _FAILURES as error:
            self.last_fault = type(error).__name__
        return None

    async def _exchange(self, body: dict[str, Any], temperature: float) -> Sample:
        begun = time.monotonic()
        # Redirects are not followed: prompts go only to the named server.
        async with self._session.post(self._url + self._options.endpoint, json=body, allow_redirects=False) as response:
            if response.status != 200:
                raise BadReply(f"status {response.status}")
            return await read_reply(response.content, temperature, begun)
