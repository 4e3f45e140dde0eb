"""``record``: what it writes gives the live numbers again, and holds no text."""

import asyncio
import contextlib
import signal
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.recording.replay import replay
from sidecar.settings import load_settings
from tests.commands.commands_tools import command, sidecar_settings
from tests.demo.http_vllm import HttpVllm
from tests.recording.recorder_tools import Log, lines_of, recorder

FAST = SimulatorOptions(speed=5)
MARKER = "zebrafish"


def traffic(vllm, requests):
    return Traffic(vllm, TrafficOptions(phases=(Phase(600, MIXED),), max_requests=requests))


@asynccontextmanager
async def recorded(folder, **options):
    """A sidecar that records a simulated vLLM; gives that and its settings."""
    socket = folder / "plugin.sock"
    async with HttpVllm(FAST, plugin_socket=socket) as vllm:
        settings = load_settings(None, sidecar_settings(vllm.url, SCRAPE_FILTERED="false", PLUGIN__SOCKET=str(socket)))
        async with recorder(folder, **options) as one, running(settings, one):
            yield vllm, settings


async def live(settings, requests):
    """The live numbers by temperature once that many requests have been seen to end."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(120):
        while True:
            async with http.get(f"http://{settings.listen}/api/v1/status") as response:
                models = (await response.json())["models"]
            rows = models[0]["temperatures"] if models else []
            if sum(sum(row["requests"].values()) for row in rows) == requests:
                return {row["temperature"]: row for row in rows}
            await asyncio.sleep(0.05)


async def test_a_replay_equals_the_live_numbers(tmp_path):
    async with recorded(tmp_path) as (vllm, settings):
        await traffic(vllm, 80).run()
        seen = await live(settings, 80)
    report = replay(tmp_path, settings)
    (model,) = report.models
    assert report.plugin.state == "observing"
    assert model.engines[0].coverage == 1
    assert sum(one.draft_tokens for one in model.temperatures) > 1000
    for one in model.temperatures:
        row = seen[one.temperature]
        for key in ("drafts", "draft_tokens", "accepted_tokens"):
            assert getattr(one, key) == row[key], (one.temperature, key)
        assert sum(one.requests.values()) == sum(row["requests"].values())
        assert one.acceptances.count == sum(one.requests.values())


async def test_no_text_of_a_prompt_or_an_answer_is_written(tmp_path, client):
    async with recorded(tmp_path) as (vllm, settings):
        body = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": MARKER}], "user": MARKER}
        async with client.post(f"{vllm.url}/v1/chat/completions", json=body) as response:
            answer = (await response.json())["choices"][0]["message"]["content"][:12]
        await live(settings, 1)
    written = [*lines_of(tmp_path, "plugin"), *lines_of(tmp_path, "scrapes")]
    assert sum("request" in line for line in written) == 1
    assert MARKER not in str(written)
    assert answer not in str(written)


async def test_a_full_recording_ends_and_the_traffic_continues(tmp_path):
    log = Log()
    async with recorded(tmp_path, max_bytes=30_000, log=log) as (vllm, settings):
        first, again = traffic(vllm, 60), traffic(vllm, 10)
        await first.run()
        async with asyncio.timeout(120):
            while not log.lines:
                await asyncio.sleep(0.01)
        await again.run()
    assert (first.completed, again.completed) == (60, 10)
    assert log.lines == ["the recording has reached its size limit; recording stops, the sidecar continues"]
    sizes = [file.stat().st_size for file in tmp_path.glob("*.gz")]
    assert len(sizes) == 2
    assert sum(sizes) <= 30_000
    assert replay(tmp_path, settings).models


async def test_a_recording_is_never_overwritten(tmp_path, finished):
    (tmp_path / "plugin.jsonl.gz").write_bytes(b"mine")
    given = sidecar_settings("http://127.0.0.1:1")
    code, out, err = await finished("record", "--out", str(tmp_path), **given)
    assert (code, out) == (1, "")
    assert err == f"--out={tmp_path}: {tmp_path}/plugin.jsonl.gz exists already; name another directory\n"
    assert (tmp_path / "plugin.jsonl.gz").read_bytes() == b"mine"


def test_a_bad_duration_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command("record", "--out", str(tmp_path), "--duration", "soon")
    assert ended.value.code == 2
    assert "argument --duration: expected duration, " in capsys.readouterr().err


@asynccontextmanager
async def recording(program, folder, requests, **environment):
    """The program as a process that has seen so many requests."""
    socket = folder.parent / "plugin.sock"
    async with HttpVllm(FAST, plugin_socket=socket) as vllm:
        given = sidecar_settings(vllm.url, PLUGIN__SOCKET=str(socket), **environment)
        settings = load_settings(None, given)
        async with program("record", "--out", str(folder), **given) as process:
            async with aiohttp.ClientSession() as http, asyncio.timeout(120):
                ready = False
                while not ready:
                    await asyncio.sleep(0.02)
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.get(f"http://{settings.listen}/-/ready") as response:
                            ready = response.status == 200
            await traffic(vllm, requests).run()
            yield process, settings


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_signal_leaves_a_recording_that_can_be_replayed(tmp_path, program, number):
    if signal.getsignal(number) is signal.SIG_IGN:  # by nohup; the program would inherit that
        signal.signal(number, signal.SIG_DFL)
    folder = tmp_path / "new"
    slow = {"SCRAPE_INTERVAL": "50s"}  # one poll before the traffic, and the one that ends the recording
    async with recording(program, folder, 40, **slow) as (process, settings):
        process.send_signal(number)
        out, err = await process.communicate()
    assert process.returncode == 0, err
    assert out.decode().startswith(f"40 requests and 2 pages in {folder}, ")
    (model,) = replay(folder, settings).models
    assert model.engines[0].coverage == 1


async def test_a_kill_leaves_what_was_written_until_then(tmp_path, program):
    folder = tmp_path / "new"
    async with recording(program, folder, 40) as (process, settings):
        async with asyncio.timeout(120):
            while not _covers(folder, 40):
                await asyncio.sleep(0.1)
        process.kill()
        await process.communicate()
    (model,) = replay(folder, settings).models
    assert sum(one.acceptances.count for one in model.temperatures) == 40


def _covers(folder, requests):
    """Whether so many requests have been written, and a poll after them."""
    try:
        ended = [line["at"] for line in lines_of(folder, "plugin") if "request" in line]
        polled = [line["start"] for line in lines_of(folder, "scrapes")]
    except (EOFError, FileNotFoundError):
        return False
    return len(ended) == requests and max(polled, default=0) > ended[-1]


@pytest.fixture
async def client():
    async with aiohttp.ClientSession() as session:
        yield session
