"""One server's client: sends requests and reads the streamed replies.

It keeps times and counts, but never any text.
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import aiohttp
from pydantic import AliasPath, BaseModel, Field

from sidecar.commands.arguments import TLS_HINT
from sidecar.errors import MeasurementError
from sidecar.log import redacted
from sidecar.requests.keys import OWN_MARK
from sidecar.tls import client_context, connection_fault
from specdec_tools.measuring.workload import ENDPOINTS, RequestOptions


class Sample(NamedTuple):
    """Times in seconds, and vLLM's own numbers; without those in the reply, ``drafts`` is None.

    ``ttft`` is the time to the first token, ``tpot`` the time per output token after it; None if
    unknown. ``histogram[j]`` counts the verification steps that accepted j tokens. ``prompt`` is
    the number of the first prompt of its template in the file, None if unknown. Saved as an array
    in the fields' order.
    """

    temperature: float
    ttft: float | None
    tpot: float | None
    tokens: int | None
    drafts: int | None = None
    draft_tokens: int = 0
    accepted_tokens: int = 0
    histogram: tuple[int, ...] = ()
    prompt: int | None = None

    @property
    def duration(self) -> float | None:
        """The time to the last token; None if it is unknown."""
        if self.ttft is None or self.tpot is None or not self.tokens:
            return None
        return self.ttft + self.tpot * (self.tokens - 1)

    @property
    def positions(self) -> list[int]:
        """How many steps accepted the draft token at each position."""
        return [sum(self.histogram[place:]) for place in range(1, len(self.histogram))]


_DATA: Final = b"data:"
_METRICS: Final = ("metrics", "speculative_decoding")


class BadReply(Exception):
    """The reply's status is not 200, it is not a stream, or it contains an error."""


class _Event(BaseModel):
    """The parts of an event that are read.

    The last events have the number of tokens and vLLM's own acceptance.
    """

    object: str = ""
    error: Any = None
    choices: tuple[Any, ...] = ()
    delta: dict[str, Any] = Field({}, validation_alias=AliasPath("choices", 0, "delta"))
    tokens: int | None = Field(None, validation_alias=AliasPath("usage", "completion_tokens"))
    drafts: int | None = Field(None, validation_alias=AliasPath(*_METRICS, "num_spec_steps"))
    draft_tokens: int = Field(0, validation_alias=AliasPath(*_METRICS, "num_draft_tokens"))
    accepted_tokens: int = Field(
        0, validation_alias=AliasPath(*_METRICS, "num_accepted_draft_tokens")
    )
    histogram: tuple[int, ...] = Field(
        (), validation_alias=AliasPath(*_METRICS, "acceptance_histogram")
    )

    @property
    def has_tokens(self) -> bool:
        """Whether it carries generated tokens: the first event of a chat has only a role."""
        return bool(self.choices) and ("role" not in self.delta or bool(self.delta.get("content")))


async def read_reply(lines: AsyncIterable[bytes], temperature: float, begun: float) -> Sample:
    """Reads the reply to a request that was sent at ``begun``, in monotonic seconds.

    Raises:
        BadReply: it is not a stream, or contains an error.
        ValueError: an event is not JSON, or not from an OpenAI-style server.
    """
    first: float | None = None
    tokens: int | None = None
    accepted = None
    last = None

    async for line in lines:
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        last = _Event() if data == b"[DONE]" else _Event.model_validate_json(data)
        if last.error is not None or last.object == "error":
            raise BadReply("an error in the stream")
        if first is None and last.has_tokens:
            first = time.monotonic()
        tokens = tokens if last.tokens is None else last.tokens
        accepted = accepted if last.drafts is None else last

    if last is None:
        raise BadReply("no stream")

    end = time.monotonic()
    numbers = accepted or last
    tpot: float | None = None
    if first is not None and tokens is not None and tokens >= 2:
        tpot = (end - first) / (tokens - 1)

    return Sample(
        temperature=temperature,
        ttft=None if first is None else first - begun,
        tpot=tpot,
        tokens=tokens,
        drafts=numbers.drafts,
        draft_tokens=numbers.draft_tokens,
        accepted_tokens=numbers.accepted_tokens,
        histogram=numbers.histogram,
    )


_FAILURES: Final = (BadReply, aiohttp.ClientError, OSError, ValueError, RecursionError)
_LONGEST_REPLY: Final = 600.0  # seconds
_MOST_REPLY: Final = 64 * 1024 * 1024  # bytes
_MOST_MODELS: Final = 1024 * 1024  # bytes of `/v1/models`
_MOST_SAID: Final = 64 * 1024  # bytes of a refusal
_MOST_WAIT: Final = 5.0  # seconds for it
# Seconds for which an idle connection is kept. vLLM closes one after 5 by default
# (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), and a request that is sent at that moment fails.
_IDLE: Final = 2.0
_TOO_LONG: Final = re.compile(rb"maximum (?:context|model) length (?:is|of) (\d{1,9})\b")


class Client:
    """Streams every response to time the first token; use it in ``async with``.

    ``name`` is its address without credentials, for error messages.
    """

    def __init__(self, url: str, options: RequestOptions, *, is_own: bool = True) -> None:
        """``is_own``: a sidecar beside this vLLM leaves the requests out of its split."""
        self.name = redacted(url)
        self._url = url.rstrip("/").removesuffix("/v1")
        self._options = options
        self._mark = OWN_MARK if is_own else ""
        headers = {"Accept-Encoding": "identity"}
        if options.api_key is not None:
            headers["Authorization"] = f"Bearer {options.api_key}"

        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(
                limit=0, ssl=client_context(tls=options.tls), keepalive_timeout=_IDLE
            ),
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
        """Finds the model, by default the first that the server names, and requests one token.

        Raises:
            MeasurementError: the server cannot be reached or names no model, or the request fails.
        """
        self.model = self.model or await self._first_model()
        if await self.ask(prompt, 0.0, max_tokens=1) is None:
            raise MeasurementError(
                f"{self.name}: a request for {self.model} failed: {self.last_fault}"
            )

    async def _first_model(self) -> str:
        try:
            url = f"{self._url}/v1/models"
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    raise BadReply(f"status {response.status}")
                models = json.loads(await _read_at_most(response, _MOST_MODELS) or b"")
                return str(models["data"][0]["id"])
        except aiohttp.ClientConnectionError as error:
            fault = _no_connection(error)
        except (*_FAILURES, LookupError, TypeError) as error:
            fault = (
                f"no model under /v1/models ({_reason(error)}); "
                "is this vLLM's address? If so, set --model"
            )

        raise MeasurementError(f"{self.name}: {fault}")

    async def ask(
        self, prompt: str, temperature: float, *, max_tokens: int | None = None
    ) -> Sample | None:
        """Sends one request and reads its response.

        None if it failed; ``last_fault`` has the reason.
        """
        options = self._options
        body: dict[str, Any] = {
            **options.extra_body,
            "model": self.model,
            "temperature": temperature,
            "max_tokens": max_tokens or options.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

        if max_tokens is not None:
            body.pop("min_tokens", None)  # vLLM refuses a request for more of these

        begun = time.monotonic()
        try:
            async with self._post(prompt, body) as response:
                return await read_reply(response.content, temperature, begun)
        except _FAILURES as error:
            self.last_fault = _reason(error)
            return None

    async def complete(self, prompt: str, fields: Mapping[str, Any]) -> Any:
        """Sends one request with these fields and returns its whole reply, parsed.

        None if it failed; ``last_fault`` has the reason.
        """
        body = {**self._options.extra_body, "model": self.model, **fields}
        try:
            async with self._post(prompt, body) as response:
                return json.loads(await _read_at_most(response, _MOST_REPLY) or b"")
        except _FAILURES as error:
            self.last_fault = _reason(error)
            return None

    @asynccontextmanager
    async def _post(
        self, prompt: str, body: Mapping[str, Any]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request to the endpoint; gives its response if the status is 200."""
        asked: dict[str, Any] = {"prompt": prompt}
        if self.is_chat:
            asked = {"messages": [{"role": "user", "content": prompt}]}

        url = self._url + ENDPOINTS[self._options.endpoint]
        # Redirects are not followed: prompts go only to the named server.
        async with self._session.post(
            url,
            json={**body, **asked},
            headers={"X-Request-Id": f"{self._mark}{uuid4().hex}"},  # vLLM takes it as its id
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                raise BadReply(await _refusal(response))
            yield response

    @property
    def is_chat(self) -> bool:
        """Whether requests go to the chat endpoint."""
        return self._options.endpoint == "chat"


def _no_connection(error: aiohttp.ClientConnectionError) -> str:
    """Why a server cannot be asked, and what to check."""
    if isinstance(error, ssl.SSLError):
        return f"cannot connect: {_reason(error)}"

    kind = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({kind}); is vLLM running, and is this its address?"
    return f"the connection was closed ({kind}); is this vLLM's address, and http or https right?"


async def _refusal(response: aiohttp.ClientResponse) -> str:
    """The status and, if that is why, that the request is too long for the model.

    Nothing else is repeated: a refusal may quote the prompt or the key.
    """
    said = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(_MOST_WAIT):
            said = await _read_at_most(response, _MOST_SAID) or b""

    found = _TOO_LONG.search(said)
    if found is None:
        return f"status {response.status}"
    return (
        f"status {response.status}: the request is longer than the model's {int(found[1])} tokens"
    )


def _reason(error: Exception) -> str:
    """Why a request failed; quotes no prompt and no output."""
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({connection_fault(error)}). {TLS_HINT}"
    return str(error) if isinstance(error, BadReply) else type(error).__name__


async def _read_at_most(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole body; if it exceeds ``most`` bytes, closes the connection and returns None.

    aiohttp's own ``content.read(most)`` returns after the first chunk.
    """
    pieces: list[bytes] = []
    received = 0
    async for piece in response.content.iter_any():
        received += len(piece)
        if received > most:
            response.close()
            return None
        pieces.append(piece)
    return b"".join(pieces)
