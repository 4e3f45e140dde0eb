"""One GET against servers that behave, and against some that don't."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.fetch import Fetcher
from sidecar.engine.http_response import Response
from sidecar.errors import (
    BadStatus,
    Interrupted,
    NotAnswered,
    PageTooLarge,
    TimedOut,
    TlsRefused,
    Unreachable,
)
from sidecar.tls import verifying

LIMIT = 100_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.fixture
async def fetcher():
    """``fetcher(url)`` makes one that is closed at the end."""
    fetchers = []

    def make(url):
        fetchers.append(Fetcher(url, timeout=120.0, page_bytes=LIMIT))
        return fetchers[-1]

    yield make
    for each in fetchers:
        await each.close()


@asynccontextmanager
async def says(*answers, pause=0.0):
    """A server below HTTP.

    To each request in turn it writes the pieces of an answer, a pause apart, and closes.
    """
    turn = iter(answers)

    async def connected(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in next(turn):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_asks_for_plain_text_at_the_path_as_given_over_one_connection(served, fetcher):
    """Neither compressed nor as OpenMetrics, under whatever path the server has."""
    seen = []

    async def handler(request):
        sent = request.headers
        seen.append((request.raw_path, sent["Accept-Encoding"], sent["Accept"], request.transport))
        return web.Response(text="ok\n")

    async with served(handler) as url:
        same = fetcher(f"{url}/serve/a")
        for _ in range(5):
            assert await same.get("/metrics/?name%5B%5D=a%3Ab") == b"ok\n"
    ((path, encoding, accept, _),) = set(seen)
    assert (path, encoding) == ("/serve/a/metrics/?name%5B%5D=a%3Ab", "identity")
    assert "openmetrics" not in accept


@pytest.mark.parametrize("status", [204, 307, 404, 503])
async def test_another_status_is_an_error_and_no_redirect_is_followed(status, served, fetcher):
    """A redirect may lead to a server that is not vLLM."""
    paths = []

    async def handler(request):
        paths.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with served(handler) as url:
        same = fetcher(url)
        for _ in range(3):
            with pytest.raises(BadStatus, match=str(status)):
                await same.get("/metrics")
    assert paths == ["/metrics"] * 3


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1, 10**9])
@pytest.mark.parametrize("announced", [True, False])
async def test_a_page_over_the_limit_is_refused_without_reading_the_rest(
    size, announced, served, fetcher
):
    sent = 0

    async def handler(request):
        nonlocal sent
        response = web.StreamResponse()
        if announced:
            response.content_length = size
        await response.prepare(request)
        while sent < size:
            await response.write(b"x" * min(65536, size - sent))
            sent += 65536
        return response

    async with served(handler) as url:
        if size <= LIMIT:
            assert len(await fetcher(url).get("/metrics")) == size
            return
        with pytest.raises(PageTooLarge):
            await fetcher(url).get("/metrics")
        # more than any kernel's buffers take; the rest is never asked for
        assert sent < LIMIT + 5 * 10**8


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"Content-Length: 100\r\n\r\nvllm:x 1\n"],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nvllm:"],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nvllm:\r\n"],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nvllm:\r\n"],
        [HEAD + b"Content-Length: x\r\n\r\nvllm:x 1\n"],
        [b"HTTP/1.1 20"],
        [b"\x00\x01\x02\r\n\r\n"],
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [HEAD],
        [],
        [HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n"],
    ],
)
async def test_truncated_and_malformed_responses_are_errors(pieces, fetcher):
    async with says(pieces) as url:
        with pytest.raises(Interrupted):
            await fetcher(url).get("/metrics")


async def test_no_answer_at_all_may_be_that_of_tls(fetcher):
    """As vLLM closes a connection that does not begin with a handshake."""
    async with says([]) as url:
        with pytest.raises(NotAnswered) as caught:
            await fetcher(url).get("/metrics")

    assert "use https" in caught.value.remedy


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_alert_of_a_server_that_asks_for_a_certificate_is_named(authority, version):
    """As proxies send it, and vLLM's own server does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("vllm"))
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = version

    def refuse(listener):
        connection, _ = listener.accept()
        with connection, suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        asking = Fetcher(url, timeout=120.0, tls=verifying(authority.certificate))
        with pytest.raises(TlsRefused):
            await asking.get("/metrics")
        await refusing
        await asking.close()


async def test_a_body_that_ends_with_the_connection_is_accepted(fetcher):
    """HTTP/1.0 framing, as some proxies still use.

    Only the page itself can tell whether it is whole.
    """
    async with says([b"HTTP/1.0 200 OK\r\n\r\nvllm:x 1\n"]) as url:
        assert await fetcher(url).get("/metrics") == b"vllm:x 1\n"


async def test_a_name_that_does_not_resolve_is_an_error_without_the_password(fetcher, monkeypatch):
    """Whatever this machine's resolver makes of such a name, and however long it takes."""

    async def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with pytest.raises(Unreachable) as caught:
        await fetcher("http://user:secret@no-such-host.invalid:8000").get("/metrics")
    assert "secret" not in str(caught.value)
    assert "no-such-host" not in str(caught.value)


async def test_the_same_fetcher_goes_on_after_any_failure(fetcher):
    """Nothing of a failed response is left for the next one."""
    failures = {
        # a server that trickles bytes
        TimedOut: [HEAD + b"Content-Length: 1000\r\n\r\n", *[b"#"] * 1000],
        PageTooLarge: [HEAD + b"\r\n" + b"x" * (2 * LIMIT)],
        Interrupted: [b"nonsense\r\n\r\n"],
        BadStatus: [b"HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\nwhat\n"],
    }
    async with says(
        *failures.values(), [HEAD + b"Content-Length: 3\r\n\r\nok\n"], pause=0.001
    ) as url:
        same = fetcher(url)
        for expected in failures:
            same._timeout = 0.2 if expected is TimedOut else 120.0
            with pytest.raises(expected):
                await same.get("/metrics")
        assert await same.get("/metrics") == b"ok\n"


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (302, "status 302, to http://***@elsewhere/metrics. The sidecar follows no redirects"),
        (401, "credentials"),
        (403, "credentials"),
        (404, "own address"),
        (500, "failed to render its metrics"),
        (503, "still starting"),
    ],
)
async def test_a_status_says_what_it_means_and_what_to_do(status, advice, fetcher):
    """Without the credentials of an address in a redirect."""
    location = b"Location: http://me:secret@elsewhere/metrics\r\n"
    head = b"HTTP/1.1 %d x\r\n" % status + location + b"Content-Length: 0\r\n\r\n"
    async with says([head]) as url:
        with pytest.raises(BadStatus) as caught:
            await fetcher(url).get("/metrics")

    text = f"{caught.value}. {caught.value.remedy}"
    assert f"status {status}" in text
    assert advice in text
    assert "secret" not in text


OK = HEAD + b"Content-Length: 3\r\n\r\nok\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
FLOODS = {
    "interim responses": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"),
    "header lines": (HEAD, b"A: b\r\n"),
    "tiny chunks": (CHUNKED, b"1\r\n#\r\n"),
    "a chunk extension": (CHUNKED + b"5;", b"a=b;"),
    "trailers": (CHUNKED + b"3\r\nok\n\r\n0\r\n", b"A: b\r\n"),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_endless_framing_is_cut_off(kind):
    """Without a limit, it would take most of a core until the time is up."""
    begin, piece = FLOODS[kind]
    response = Response(most_bytes=8 * 1024 * 1024)
    response.feed(begin)

    with pytest.raises(Interrupted):
        response.feed(piece * 25_000)


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"junk"])
async def test_what_nobody_asked_for_is_not_read(more, fetcher):
    """A server that goes on sending: the connection ends, and the next poll has a new one."""
    async with says([OK + more, more * 10_000], [OK]) as url:
        same = fetcher(url)
        for _ in range(2):
            assert await same.get("/metrics") == b"ok\n"


@given(st.lists(st.integers(1, 40), max_size=20), st.binary(max_size=300))
def test_a_response_is_read_alike_however_it_is_cut(cuts, body):
    """Chunks, trailers and an interim response, in pieces of any size."""
    chunks = [body[start : start + 7] for start in range(0, len(body), 7)]
    framed = b"".join(b"%x;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    sent = b"HTTP/1.1 103 Hints\r\n\r\n" + CHUNKED + framed + b"0\r\nA: b\r\n\r\n"
    response = Response(most_bytes=1000)
    for size in [*cuts, len(sent)]:
        response.feed(sent[:size])
        sent = sent[size:]

    assert (response.is_complete, response.is_last, response.body) == (True, False, body)


async def test_a_kept_connection_that_the_server_has_closed_is_no_failure(fetcher):
    async with says([OK], [OK], [OK]) as url:
        same = fetcher(url)
        for _ in range(3):
            assert await same.get("/metrics") == b"ok\n"
            await asyncio.sleep(0)
