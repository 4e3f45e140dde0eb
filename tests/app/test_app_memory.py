"""Memory of the sidecar as its own process, against pages without end."""

import asyncio
import json
import re
import signal
import socket
from pathlib import Path

import pytest
from aiohttp import web

from tests.app.app_tools import sidecar_settings
from tests.cells import NOTHING, numbers
from tests.page import Page
from tests.requests.packets import END, FILTERED, HELLO, PENALTIES, STEPS, STRUCTURED, packet
from tests.waiting import START_SECONDS, until

LIMIT_KIB = 192 * 1024  # three quarters of what the manifests give its container
ENDLESS = 400_000_000  # bytes


def pieces(kind):
    """An answer's body, in pieces."""
    if kind == "endless":
        for _ in range(ENDLESS // 50_000):
            yield b"x" * 50_000
    elif kind == "series":
        yield b"".join(
            b'vllm:num_requests_running{model_name="m",engine="%d"} 1\n' % n for n in range(99_000)
        )
    elif kind == "labels":
        yield (
            b"vllm:num_requests_running{"
            + b",".join(b'l%d="%s"' % (n, b"v" * 1000) for n in range(8000))
            + b"} 1\n"
        )
    elif kind == "models":
        # Within all limits, and every poll other models.
        turn = next(models)
        yield b"".join(
            b'vllm:generation_tokens_total{model_name="m%d-%d"} 1\n' % (turn, n) for n in range(250)
        )


models = iter(range(10**9))


def peak_kib(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.slow
async def test_endless_pages_of_vllm_cost_bounded_memory(served, recorded, program):
    """Without end, with too many series, labels or models, each between two sound pages."""
    kind = "sound"
    asked = dict.fromkeys(["endless", "series", "labels", "models", "sound"], 0)

    async def handler(request):
        asked[kind] += 1
        if kind == "sound":
            return web.Response(body=recorded("vllm-0.33.0-dp2.prom"))
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces(kind):
            await response.write(piece)
        return response

    async with served(handler) as url:
        given = sidecar_settings(url, LATENCY_WINDOW="10s", HISTORY="10s")
        async with program("run", **given) as process:
            page = Page(f"http://{given['SPECDEC_LISTEN']}")
            await page.until(lambda samples: samples.up, seconds=START_SECONDS)
            calm = peak_kib(process.pid)
            for bad in ("endless", "series", "labels", "models"):
                kind = bad
                await until(lambda: asked[kind] >= 4, seconds=START_SECONDS)  # noqa: B023 - awaited here
                kind = "sound"
                up = await page.until(lambda samples: samples.up)
            peak = peak_kib(process.pid)
            process.send_signal(signal.SIGTERM)
            _, log = await process.communicate()
    assert peak < LIMIT_KIB, (calm, peak)
    assert up.value("specdec_scrape_errors_total", reason="too_large") >= 6
    lines = [json.loads(line) for line in log.splitlines()]
    # One for each change, whatever number of polls failed.
    assert len([line for line in lines if line["level"] == "warning"]) <= 6
    assert process.returncode == 0


def long_names(engines=8):
    """The real page, with names as long as the sidecar takes them."""
    text = (Path(__file__).parents[1] / "data/pages/vllm-0.33.0.prom").read_text()
    name = re.search(r'model_name="([^"]*)"', text)[1]
    engine = re.compile(r'^(vllm:[^{]*\{)engine="0"(.*)$', re.MULTILINE)

    def copies(match):
        """The others have drafted nothing.

        Nobody reports for them, and the split would be withheld.
        """
        none = re.sub(r" \S+$", " 0.0", match[2]) if "spec_decode" in match[1] else match[2]
        others = [f'{match[1]}engine="{number:0512}"{none}' for number in range(1, engines)]
        return "\n".join([match[0], *others])

    return engine.sub(copies, text.replace(f'"{name}"', f'"{MODEL}"')).encode()


MODEL = "m" * 512
DRAFTED = (0, 472, 1378, 866)  # requests, drafts, draft and accepted tokens, as on the page


def every_cell():
    """A plug-in's report for the engine 0 with a cell for each kind of label."""
    keys = [
        *([key, 0, 1, None] for key in (20, 45, 60, 90, 150)),
        *([0, 0, key, None] for key in (10, 12, 14, 16)),
        *([70, bits, 1, None] for bits in (STRUCTURED, FILTERED, PENALTIES)),
        *([0, 0, 1, "a" * 250 + str(number)] for number in range(20)),
    ]
    cells = [[*key, NOTHING] for key in keys]
    steps = [[key, 0, False, [*STEPS.values()]] for key in range(1, 11)]
    report = {
        "requests": [[0, 0, 1, None, numbers(*DRAFTED)], *cells],
        "steps": steps,
        "finished": [],
        "end": END,
    }
    return packet(report=report)


@pytest.mark.slow
async def test_clients_that_do_not_read_cost_bounded_memory(served, program, socket_path):
    """More than there may be, of the largest page, in more formats than are kept."""
    page, links, loop = long_names(), [], asyncio.get_running_loop()

    async def handler(_):
        return web.Response(body=page + b'specdec_server_info{id="a1b2"} 1\n')

    async with served(handler) as url:
        given = sidecar_settings(url, PLUGIN__ADAPTERS="true", PLUGIN__SOCKET=socket_path)
        host, port = given["SPECDEC_LISTEN"].split(":")
        async with program("run", **given) as process:
            await until(socket_path.exists, seconds=START_SECONDS)
            links.append(plugin := socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            plugin.connect(str(socket_path))
            plugin.send(packet(hello={**HELLO, "model": MODEL}))
            plugin.send(every_cell())
            own = Page(f"http://{given['SPECDEC_LISTEN']}")
            await own.until(
                lambda samples: samples.matching("specdec_group_drafts_total", by="adapter"),
                seconds=START_SECONDS,
                pause=0.2,
            )
            # A page of the most series that a pod exports, so that the clients hold much.
            assert len((await own.get("/metrics")).body) > 450_000
            for number in range(4 * 64):
                links.append(link := socket.socket())
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                link.setblocking(False)
                await loop.sock_connect(link, (host, int(port)))
                accept = f"application/openmetrics-text; version=1.0.{number % 40}"
                link.send(f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())
                await loop.sock_recv(link, 1)
            peak = peak_kib(process.pid)
    for link in links:
        link.close()
    assert peak < LIMIT_KIB, peak
