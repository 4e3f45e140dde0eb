"""A real Chromium, driven over its own debugging protocol."""

import asyncio
import base64
import itertools
import os
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    " --disable-background-networking --disable-component-update --disable-sync"
    " --disable-dev-shm-usage --remote-debugging-port=0"
)


class Tab:
    """One page of the browser."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = itertools.count(1)
        self.events = []

    async def call(self, method, **parameters):
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while (message := await self._socket.receive_json()).get("id") != number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    async def open(self, url, width=1100, height=1000, *, dark=False):
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)
        document = (await self.call("Page.navigate", url=url))["loaderId"]
        loaded = {"name": "load", "loaderId": document}
        # Until then an expression may still be evaluated in the empty page before it, or in none.
        while not any(loaded.items() <= event.get("params", {}).items() for event in self.events):
            self.events.append(await self._socket.receive_json())

    async def value(self, expression):
        result = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        return result["result"].get("value")

    async def until(self, expression):
        """Waits until ``expression`` holds; fails with what the page shows instead."""
        try:
            async with asyncio.timeout(30):
                while not await self.value(expression):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            shown = await self.value("[document.hidden, document.body.innerText]")
            pytest.fail(f"expected {expression}; hidden, and the page's text: {shown}")

    async def screenshot(self, path: Path, *, whole=True):
        """Of the ``whole`` page or, else, of what the window shows."""
        picture = await self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(picture["data"]))

    def requested(self):
        """Every address that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self):
        """The browser's complaints about the page: errors of scripts and of the security policy."""
        logged = [
            event
            for event in self.events
            if event["method"] in {"Log.entryAdded", "Runtime.exceptionThrown"}
        ]
        return [event["params"] for event in logged if "favicon" not in str(event)]


async def first_tab(session, targets):
    """The address of the only tab.

    A second one may hide it at any time, and a hidden page does not renew itself.
    """
    while True:
        async with session.get(targets) as response:
            for target in await response.json():
                if target["type"] == "page":
                    return target["webSocketDebuggerUrl"]
        await asyncio.sleep(0.05)


@asynccontextmanager
async def running_browser(profile):
    """Its only tab; ``profile`` is a folder of its own."""
    process = await asyncio.create_subprocess_exec(
        *("chromium", *_FLAGS.split(), f"--user-data-dir={profile}", "about:blank"),
        env=os.environ | {"TMPDIR": "/tmp"},  # it makes Unix sockets there
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with aiohttp.ClientSession() as session:
            while b"DevTools listening on" not in (line := await process.stderr.readline()):
                assert line, "chromium ended"
            port = line.decode().split(":")[-1].split("/")[0]
            address = await first_tab(session, f"http://127.0.0.1:{port}/json/list")
            draining = asyncio.create_task(process.stderr.read())
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address, max_msg_size=0) as socket,
        ):
            yield Tab(socket)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
