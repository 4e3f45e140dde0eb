"""What asking for usage may hold: requests until they are whole, and both forms of each until vLLM replies."""

import asyncio
import json

from sidecar.requests.proxy import observer as observer_module
from tests.requests.proxy.proxy_doubles import until
from tests.requests.proxy.test_exchange_asking import EXPECTED, REPLY, REQUEST, STREAM, VLLM, asking, chunks, post


async def test_a_request_is_not_held_back_once_the_memory_for_bodies_is_spent(monkeypatch):
    """Each of 4,096 connections could hold one."""
    monkeypatch.setattr(observer_module, "_OBSERVED_BYTES", 50_000)
    arrived = asyncio.Event()

    async def script(connection):
        await connection.read(1)
        arrived.set()
        while len(connection.received) < len(request):
            await connection.read()
        await connection.send(STREAM + chunks(REPLY, 300) + b"0\r\n\r\n")

    request = post(json.dumps(REQUEST | {"user": "x" * 90_000}).encode())
    async with asking(script) as (proxy, sink):
        client = await proxy.client()
        await client.send(request[:60_000])
        await client.send(request[60_000:-1])
        async with asyncio.timeout(20):
            await arrived.wait()
        assert (await client.ask(request[-1:])).body == REPLY
        await until(lambda: sink.records)
        assert sink.drops[observer_module.OUT_OF_MEMORY] == 1


async def test_a_changed_request_and_its_original_share_that_memory_until_vllm_replies(monkeypatch):
    monkeypatch.setattr(observer_module, "_OBSERVED_BYTES", 350_000)
    free = asyncio.Event()

    class Stalled(VLLM):
        async def _body(self, connection):
            body = await super()._body(connection)
            await free.wait()
            return body

    vllm = Stalled()
    request = post(json.dumps(REQUEST | {"user": "x" * 90_000}).encode())
    async with asking(vllm) as (proxy, sink):
        clients = [await proxy.client() for _ in range(3)]
        for number, client in enumerate(clients):
            await client.send(request)
            await until(lambda number=number: len(proxy.server._pool.open) > number)
        free.set()
        assert [(await client.reply()).body == EXPECTED for client in clients] == [True, False, False]
        await until(lambda: len(sink.records) == 3)
        assert sink.drops[observer_module.OUT_OF_MEMORY] == 2
        for client in clients:  # the memory is there again
            assert (await client.ask(request)).body == EXPECTED
