"""What an observer is told, and that it can do no harm."""

import pytest

from tests.requests.proxy.relay_doubles import Recorder, until
from tests.requests.proxy.relay_tools import GET, HOST, answer, answering, proxied

POST = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}"
METHODS = ["request_head", "request_body", "request_end", "response_head", "response_body", "finished"]


async def test_calls_come_in_order_and_finished_comes_once():
    async with proxied(answering) as (proxy, _):
        client = await proxy.client()
        await client.ask(POST)
        assert [call[0] for call in proxy.observer.calls] == METHODS
        assert (proxy.observer.request, proxy.observer.response) == (b"{}", b"ok")


@pytest.mark.parametrize("method", METHODS)
async def test_observer_that_raises_is_counted_and_changes_nothing(method):
    recorders = []

    def observe():
        class Raising(Recorder):
            pass

        def fail(self, *_):
            self.calls.append((method,))
            raise RuntimeError

        setattr(Raising, method, fail)
        recorders.append(Raising())
        return recorders[-1]

    async with proxied(answering, observe=observe) as (proxy, server):
        client = await proxy.client()
        for _ in range(2):
            assert (await client.ask(POST)).body == b"ok"
        assert server.received == POST * 2
        assert proxy.stats.observer_failures == 2
        assert proxy.stats.outcomes["completed"] == 2
        for recorder in recorders:
            seen = METHODS[: METHODS.index(method) + 1]
            expected = seen if method == "finished" else [*seen, "finished"]
            assert [call[0] for call in recorder.calls] == expected


async def test_factory_that_raises_or_declines_leaves_the_traffic_alone():
    answers = [None, RuntimeError]

    def observe():
        now = answers.pop()
        if now is not None:
            raise now

    async with proxied(answering, observe=observe) as (proxy, _):
        client = await proxy.client()
        assert (await client.ask(POST)).body == b"ok"
        assert (await client.ask(POST)).body == b"ok"
        assert proxy.stats.observer_failures == 1
        assert proxy.stats.exchanges == 2


async def test_error_of_the_upstream_is_relayed_and_observed_as_it_is():
    async with proxied(answer(b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nfail")) as (proxy, _):
        client = await proxy.client()
        reply = await client.ask(GET)
        assert (reply.status, reply.reason, reply.body) == (500, "Oh", b"fail")
        assert (proxy.observer.status, proxy.observer.outcome) == (500, "completed")


async def test_stats_add_up_and_start_complete():
    async with proxied(answering) as (proxy, _):
        before = proxy.stats
        assert set(before.outcomes.values()) | set(before.refused.values()) == {0}
        client = await proxy.client()
        await client.ask(GET)
        await client.ask(POST)
        await client.ask(b"nonsense\r\n\r\n")
        after = proxy.stats
        assert (after.exchanges, after.outcomes["completed"], after.refused["bad_request"]) == (2, 2, 1)
        assert before.exchanges == 0
        client.kill()
        await until(lambda: proxy.stats.client_connections == 0)
        assert (proxy.stats.upstream_connections, proxy.stats.upstream_idle) == (1, 1)


async def test_nothing_of_a_request_is_logged():
    async with proxied(answer(b"nonsense \xff secret-5\r\n\r\n", close=True)) as (proxy, _):
        for request in (
            b"GET /?key=secret-1 HTTP/1.1\r\n" + HOST + b"Authorization: Bearer secret-2\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: secret-3/\r\n\r\n",
            b"secret-4\r\n\r\n",
        ):
            client = await proxy.client()
            reply = await client.ask(request)
            assert reply.status >= 400
            assert b"secret" not in reply.body
        assert "secret" not in str(proxy.log.events)
