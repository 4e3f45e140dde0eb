"""Learns vLLM's version, which decides whether to ask for usage."""

import asyncio
from contextlib import suppress
from typing import Final

import aiohttp
import msgspec

from sidecar.requests.observe.usage import UsageAsker
from sidecar.requests.proxy.options import Upstream

_EVERY: Final = 2.0  # seconds, while the version is unknown
_TIMEOUT: Final = 5.0  # seconds
_LARGEST: Final = 4096  # bytes
_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError)


class _Version(msgspec.Struct):
    version: str


async def follow_version(upstream: Upstream, asker: UsageAsker) -> None:
    """Sets ``asker.version`` from vLLM's ``/version`` whenever it is unknown; runs until cancelled."""
    scheme = "http" if upstream.ssl is None else "https"
    url = f"{scheme}://{upstream.authority.decode()}/version"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
        while True:
            if asker.version is None:
                with suppress(*_FAILURES):
                    async with session.get(url, ssl=upstream.ssl or True, allow_redirects=False) as response:
                        body = await response.content.read(_LARGEST)
                        asker.version = msgspec.json.decode(body, type=_Version).version
            await asyncio.sleep(_EVERY)
