"""Memory of the sidecar as its own process, against pages without end."""

import asyncio
import json
import signal
from pathlib import Path

from aiohttp import web

from tests.app.app_tools import sidecar_settings

LIMIT_KIB = 192 * 1024  # three quarters of what the manifests give its container
ENDLESS = 400_000_000  # bytes


def pieces(kind):
    """An answer's body, in pieces."""
    if kind == "endless":
        for _ in range(ENDLESS // 50_000):
            yield b"x" * 50_000
    elif kind == "series":
        yield b"".join(b'vllm:num_requests_running{model_name="m",engine="%d"} 1\n' % n for n in range(99_000))
    elif kind == "labels":
        yield b"vllm:num_requests_running{" + b",".join(b'l%d="%s"' % (n, b"v" * 1000) for n in range(8000)) + b"} 1\n"
    elif kind == "models":
        # Within all limits, and every poll other models.
        turn = next(models)
        yield b"".join(b'vllm:generation_tokens_total{model_name="m%d-%d"} 1\n' % (turn, n) for n in range(250))


models = iter(range(10**9))


def peak_kib(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def test_pages_without_end_cost_bounded_memory(served, recorded, http, program):
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

    async def status():
        try:
            async with http.get(f"http://{given['SPECDEC_LISTEN']}/api/v1/status") as response:
                return json.loads(await response.read())["scrape"]
        except OSError:
            return {"up": False}

    async def until_up():
        while not (await status())["up"]:
            assert process.returncode is None
            await asyncio.sleep(0.02)

    async with served(handler) as url:
        given = sidecar_settings(url, LATENCY_WINDOW="10s", HISTORY="10s")
        async with program("run", **given) as process:
            await until_up()
            calm = peak_kib(process.pid)
            for bad in ("endless", "series", "labels", "models"):
                kind = bad
                while asked[kind] < 4:
                    await asyncio.sleep(0.02)
                kind = "sound"
                await until_up()
            errors = (await status())["errors"]
            peak = peak_kib(process.pid)
            process.send_signal(signal.SIGTERM)
            _, log = await process.communicate()
    assert peak < LIMIT_KIB, (calm, peak)
    assert errors["too_large"] >= 6
    lines = [json.loads(line) for line in log.splitlines()]
    # One for each change, whatever number of polls failed.
    assert len([line for line in lines if line["level"] == "warning"]) <= 6
    assert process.returncode == 0
