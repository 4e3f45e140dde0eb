import asyncio
import contextlib
import gzip
import signal
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.demo.traffic import MIXED, Phase, TrafficOptions
from sidecar.recording.replay import replay
from sidecar.settings import load_settings
from tests.commands.commands_tools import command, sidecar_settings
from tests.demo.counted_traffic import CountedTraffic
from tests.recording.recorder_tools import Log, lines_of, recorder

MARKER = "zebrafish"


def traffic(settings, requests, **options):
    url = f"http://{settings.proxy.listen}"
    return CountedTraffic(TrafficOptions(url, phases=(Phase(60, MIXED),), max_requests=requests, **options)).run()


@asynccontextmanager
async def recorded(folder, simulator=None, **options):
    """A sidecar that records what passes through it; gives its settings."""
    async with SimulatedVllm(simulator or SimulatorOptions(speed=5)) as vllm:
        settings = load_settings(None, sidecar_settings(vllm.url, SCRAPE_FILTERED="false"))
        async with recorder(folder, **options) as one, running(settings, one):
            yield settings


async def live_status(settings, requests):
    """The status by temperature once that many requests are settled, attributed or not."""
    async with aiohttp.ClientSession() as http, asyncio.timeout(120):
        while True:
            async with http.get(f"http://{settings.listen}/api/v1/status") as response:
                models = (await response.json())["targets"][0]["requests"]["models"]
            if models and sum(models[0]["ended"].values()) == requests:
                return {label: bucket for label, bucket in models[0]["temperatures"].items() if bucket["requests"]}


async def test_a_replay_equals_the_live_numbers(tmp_path):
    async with recorded(tmp_path) as settings:
        sent = await traffic(settings, 80)
        live = await live_status(settings, 80)
    replayed = replay(tmp_path, infer=False)
    assert replayed.temperatures.keys() == live.keys()
    for label, bucket in replayed.temperatures.items():
        for key in ("requests", "draft_tokens", "accepted_tokens", "acceptance", "p10", "p50", "p90"):
            assert getattr(bucket, key) == live[label][key], (label, key)
    assert replayed.coverage == 1
    assert sum(bucket.draft_tokens for bucket in replayed.temperatures.values()) == sum(
        one.draft_tokens for one in sent.acceptance.values()
    )


async def test_inferred_numbers_are_those_that_were_inferred_live(tmp_path):
    async with recorded(tmp_path, SimulatorOptions(speed=5, exact=False)) as settings:
        await traffic(settings, 150)
        live = await live_status(settings, 150)
    assert sum(bucket["requests"] for bucket in live.values()) >= 100
    for label, bucket in replay(tmp_path, infer=False).temperatures.items():
        assert bucket.attribution == "inferred"
        assert bucket.requests == live[label]["requests"]
        assert bucket.draft_tokens == pytest.approx(live[label]["draft_tokens"], rel=0.01)
        assert bucket.acceptance == pytest.approx(live[label]["acceptance"], abs=0.01)


async def test_the_format_is_the_documented_one(tmp_path):
    async with recorded(tmp_path) as settings:
        await traffic(settings, 30)
        await live_status(settings, 30)
    requests = lines_of(tmp_path, "requests")
    assert len(requests) == 30
    documented = {"id", "path", "temperature", "stream", "max_tokens", "start", "end", "chunks", "usage"}
    for line in requests:
        assert documented | {"speculative_decoding", "model", "choices", "outcome"} <= line.keys()
        assert line["end"] > line["start"]
        if not line["stream"]:
            assert line["chunks"] == []
            continue
        chunks, role = line["chunks"], line["path"] == "/v1/chat/completions"
        assert len(chunks) == line["stream_events"] + role
        assert chunks == sorted(chunks)
        assert 0 < chunks[-1] <= line["end"] - line["start"] + 0.001
        steps = line["speculative_decoding"]["num_spec_steps"]
        assert len(chunks) - role <= steps + 1  # a step a chunk, and the prefill's token
    scrapes = lines_of(tmp_path, "scrapes")
    assert all(page["end"] > page["start"] for page in scrapes)
    assert all("# HELP process_start_time_seconds" in page["text"] for page in scrapes)  # the whole page


async def test_no_text_of_a_prompt_or_an_answer_is_written(tmp_path):
    async with recorded(tmp_path) as settings:
        body = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": MARKER}], "user": MARKER}
        async with aiohttp.ClientSession() as http:
            url = f"http://{settings.proxy.listen}/v1/chat/completions"
            async with http.post(url, json=body) as response:
                answer = (await response.json())["choices"][0]["message"]["content"][:12]
            async with http.post(url, json=body | {"max_tokens": -1}) as response:
                assert response.status == 400
        await live_status(settings, 2)
    text = gzip.decompress((tmp_path / "requests.jsonl.gz").read_bytes()).decode()
    assert len(text.splitlines()) == 2
    assert MARKER not in text
    assert answer not in text
    assert MARKER not in gzip.decompress((tmp_path / "scrapes.jsonl.gz").read_bytes()).decode()


async def test_a_full_recording_ends_and_the_traffic_continues(tmp_path):
    log = Log()
    async with recorded(tmp_path, max_bytes=30_000, log=log) as settings:
        sent = await traffic(settings, 60)
        async with asyncio.timeout(120):
            while not log.lines:
                await asyncio.sleep(0.01)
        again = await traffic(settings, 10)
    assert (sent.completed, again.completed) == (60, 10)
    assert log.lines == ["the recording has reached its size limit; recording stops, the sidecar continues"]
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) <= 30_000
    assert lines_of(tmp_path, "scrapes")
    replay(tmp_path, infer=False)


async def test_a_recording_is_never_overwritten(tmp_path, finished):
    (tmp_path / "requests.jsonl.gz").write_bytes(b"mine")
    given = sidecar_settings("http://127.0.0.1:1")
    code, out, err = await finished("record", "--out", str(tmp_path), **given)
    assert (code, out) == (1, "")
    assert err == f"--out={tmp_path}: {tmp_path}/requests.jsonl.gz exists already; name another directory\n"
    assert (tmp_path / "requests.jsonl.gz").read_bytes() == b"mine"


def test_without_a_source_there_is_nothing_to_record(tmp_path, capsys):
    assert command("record", "--out", str(tmp_path)) == 2
    assert "set SPECDEC_REQUESTS__SOURCE to proxy, middleware or traces" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_bad_duration_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command("record", "--out", str(tmp_path), "--duration", "soon", REQUESTS__SOURCE="proxy")
    assert ended.value.code == 2
    assert "argument --duration: expected duration, " in capsys.readouterr().err


@asynccontextmanager
async def sent_through(program, folder, vllm, requests, **environment):
    """The program as a process, with requests behind it."""
    given = sidecar_settings(vllm.url, **environment)
    settings = load_settings(None, given)
    async with program("record", "--out", str(folder), **given) as process:
        async with aiohttp.ClientSession() as http, asyncio.timeout(120):
            ready = False
            while not ready:
                await asyncio.sleep(0.02)
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(f"http://{settings.listen}/-/ready") as response:
                        ready = response.status == 200
        await traffic(settings, requests)
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_signal_leaves_a_recording_that_can_be_replayed(tmp_path, program, number):
    if signal.getsignal(number) is signal.SIG_IGN:  # by nohup; the program would inherit that
        signal.signal(number, signal.SIG_DFL)
    folder = tmp_path / "new"
    async with SimulatedVllm(SimulatorOptions(speed=5)) as vllm:
        slow = {"SCRAPE_INTERVAL": "50s"}  # one poll before the traffic, and the one that ends the recording
        async with sent_through(program, folder, vllm, 40, **slow) as process:
            process.send_signal(number)
            out, err = await process.communicate()
    assert process.returncode == 0, err
    assert out.decode().startswith(f"40 requests and 2 pages in {folder}, ")
    assert replay(folder, infer=False).coverage == 1


async def test_a_kill_leaves_what_was_written_until_then(tmp_path, program):
    async with SimulatedVllm(SimulatorOptions(speed=5)) as vllm, sent_through(program, tmp_path, vllm, 40) as process:
        async with asyncio.timeout(120):
            while not (tmp_path / "requests.jsonl.gz").stat().st_size:
                await asyncio.sleep(0.02)
        process.kill()
        await process.communicate()
    assert lines_of(tmp_path, "scrapes")
    assert sum(bucket.requests for bucket in replay(tmp_path, infer=False).temperatures.values()) > 0
