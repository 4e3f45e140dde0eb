"""vLLM is asked whether it is paused only while someone suspects that it has stalled."""

import asyncio
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from sidecar.engine.pause import PauseAsker
from sidecar.settings.groups import Scrape


@dataclass
class Suspicion:
    """Suspects until it has two answers."""

    answers: list[tuple[float, bool]] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    suspects_stall: bool = True

    def answered(self, at, *, is_paused):
        self.answers.append((at, is_paused))
        if len(self.answers) == 2:
            self.suspects_stall = False
            self.done.set()


def answering(asked, **response):
    """A handler that answers so, and notes what was asked."""

    async def answer(request):
        asked.append(request.path_qs)
        return web.json_response(**response)

    return answer


@pytest.mark.parametrize(
    ("response", "is_paused"),
    [
        ({"data": {"is_paused": True}}, True),
        ({"data": {"is_paused": False}}, False),
        ({"data": {"is_paused": "yes"}}, False),
        ({"data": ["is_paused"]}, False),
        ({"text": "not JSON"}, False),
        ({"data": {"detail": "Not Found"}, "status": 404}, False),
        ({"text": "[" * 3000}, False),
        ({"text": '{"is_paused": true' + " " * 5000 + "}"}, False),
    ],
)
async def test_only_a_clear_yes_is_a_pause(served, response, is_paused):
    """Any other answer, an error and an answer without end are none."""
    async with served(answering([], **response)) as url:
        asker = PauseAsker(Scrape(vllm_url=url), Suspicion())

        assert await asker.ask() is is_paused


async def test_a_server_that_is_gone_is_not_paused(served):
    """It does not stop the asker either."""
    async with served(answering([], data={})) as url:
        pass

    assert not await PauseAsker(Scrape(vllm_url=url), Suspicion()).ask()


async def test_nothing_is_sent_unless_a_stall_is_suspected(served):
    """Each question is a line in vLLM's access log."""
    suspicion = Suspicion()
    asked = []
    async with served(answering(asked, data={"is_paused": True})) as url:
        asker = PauseAsker(Scrape(vllm_url=url), suspicion, clock=lambda: 7.0, every=0)
        running = asyncio.create_task(asker.run())
        await suspicion.done.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        running.cancel()

    assert suspicion.answers == [(7.0, True), (7.0, True)]
    assert asked == ["/is_paused", "/is_paused"]
