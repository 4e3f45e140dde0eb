"""A server's pages, and the samples of its ``/metrics``.

They are parsed independently of the sidecar's code.
"""

import json
import re

import aiohttp

from tests.waiting import SECONDS, until


class Samples(dict):
    """A page's samples: {(name, frozenset of raw label pairs): value}."""

    @classmethod
    def parsed(cls, text):
        samples = cls()
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, labels, value = re.fullmatch(r"([^{ ]+)(?:\{(.*)\})? (\S+)", line).groups()
                key = (name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")))
                assert key not in samples, line
                samples[key] = float(value)
        return samples

    @property
    def names(self):
        return {name for name, _ in self}

    @property
    def up(self):
        return self.value("specdec_up")

    def matching(self, name, /, **labels):
        """The values of a metric's samples with these labels."""
        return [
            value
            for (found, pairs), value in self.items()
            if found == name and labels.items() <= set(pairs)
        ]

    def value(self, name, /, **labels):
        """The one value; None if there is none."""
        values = self.matching(name, **labels)
        assert len(values) <= 1, (name, labels)
        return values[0] if values else None

    def sum(self, name, /, **labels):
        return sum(self.matching(name, **labels))

    def since(self, before):
        """How much each has grown."""
        return Samples((key, value - before.get(key, 0)) for key, value in self.items())


class Page:
    """The pages of a server; calling it gives the samples of its ``/metrics``."""

    def __init__(self, url):
        self.url = url

    async def get(self, path, method="GET"):
        """The answer, with its ``body``."""
        asked = {"Accept-Encoding": "identity"}
        async with (
            aiohttp.ClientSession(headers=asked) as http,
            http.request(method, self.url + path) as answer,
        ):
            answer.body = await answer.read()
            return answer

    async def status(self):
        """The JSON of a sidecar."""
        return json.loads((await self.get("/api/v1/status")).body)

    async def __call__(self):
        answer = await self.get("/metrics")
        assert answer.status == 200
        return Samples.parsed(answer.body.decode())

    async def until(self, read, expected=True, seconds=SECONDS, pause=0.005):
        """Waits until ``read(samples)`` is what is expected; returns the samples.

        The server may still be starting.
        """
        samples = Samples()

        async def current():
            nonlocal samples
            try:
                samples = await self()
            except aiohttp.ClientConnectionError:
                return None
            return read(samples)

        def shown():
            above = [
                (key, value) for key, value in samples.items() if value and "_bucket" not in key[0]
            ]
            return (
                "; samples above 0:"
                f" { {f'{name}{dict(pairs)}': value for (name, pairs), value in above} }"
            )

        await until(current, expected, seconds=seconds, pause=pause, detail=shown)
        return samples
