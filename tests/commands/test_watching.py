"""Polling in the background of a command."""

import asyncio

import pytest

from sidecar.commands.watching import polling
from sidecar.settings.groups import Scrape
from tests.analysis.analysis_tools import page, snap


class Source:
    async def next(self):
        return page(snap())


class Sink:
    def scraped(self, *_):
        raise KeyError("a page that it cannot take in")


async def test_what_ends_the_polls_ends_the_command_and_is_not_taken_for_an_idle_vllm():
    with pytest.raises(KeyError):
        async with polling(Source(), Scrape(), Sink()):
            await asyncio.sleep(0)
