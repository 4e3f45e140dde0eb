"""``record``: what it writes gives the live numbers again, and holds no text."""

import asyncio
import re
import signal
import socket
from contextlib import AsyncExitStack, suppress

import pytest

from sidecar.settings import Settings, load_settings
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.traffic import MIXED
from specdec_tools.recording.recording import replay
from tests.app.app_tools import running_sidecar, sidecar_settings, work
from tests.commands.commands_tools import command
from tests.demo.http_vllm import HttpVllm
from tests.marks import slow
from tests.recording.recorder_tools import lines_of, recorder

FAST = SimulatorOptions(speed=5)
MARKER = "zebrafish"
ANSWER = "token "  # what the simulated vLLM writes


async def covered(folder, requests):
    """Waits until so many requests were written, and two polls after them.

    Coverage compares with a poll before.
    """
    while True:
        with suppress(EOFError, OSError):  # it is being written
            ended = [
                line["at"]
                for line in lines_of(folder, "plugin")
                for _ in line.get("report", {}).get("finished", ())
            ]
            polled = [line["start"] for line in lines_of(folder, "scrapes")]
            if len(ended) == requests and sum(at > max(ended, default=0.0) for at in polled) >= 2:
                return
        await asyncio.sleep(0.1)  # reading all of it again takes a while


async def test_a_replay_equals_the_live_numbers_and_no_text_of_a_prompt_or_an_answer_is_written(
    folder, http
):
    plugin = folder / "plugin.sock"
    async with AsyncExitStack() as stack:
        vllm = await stack.enter_async_context(HttpVllm(FAST, plugin_socket=plugin))
        own = {"recorder": stack.enter_context(recorder(folder)), "scrape_filtered": "false"}
        page = await stack.enter_async_context(running_sidecar(plugin, vllm.url, **own))
        await work(vllm, 80, mix=MIXED)
        body = {
            "model": "demo",
            "max_tokens": 8,
            "messages": [{"role": "user", "content": MARKER}],
            "user": MARKER,
        }
        async with http.post(f"{vllm.url}/v1/chat/completions", json=body) as response:
            assert ANSWER in await response.text()
        await covered(folder, 81)
        live = (await page.status())["models"][0]["temperatures"]
    report = replay(folder, Settings())
    (model,) = report.models
    assert report.plugin.state == "observing"
    assert model.engines[0].coverage == 1
    assert sum(part.tally.draft_tokens for part in model.temperatures) > 1000
    assert [part.temperature for part in model.temperatures] == [row["temperature"] for row in live]
    for part, row in zip(model.temperatures, live, strict=True):
        for key in ("requests", "drafts", "draft_tokens", "accepted_tokens"):
            assert getattr(part.tally, key) == row["tally"][key], (part.temperature, key)
        assert part.acceptances.count == part.tally.requests
    written = str([lines_of(folder, "plugin"), lines_of(folder, "scrapes")])
    assert MARKER not in written
    assert ANSWER not in written


@pytest.mark.parametrize("name", ["plugin.jsonl.gz", "scrapes.jsonl.gz"])
def test_a_recording_is_never_overwritten_nor_added_to(tmp_path, capsys, name):
    """Whichever of its two files is there already."""
    file = tmp_path / name
    file.write_bytes(b"mine")
    assert command("record", "--out", str(tmp_path)) == 2
    assert capsys.readouterr() == ("", f"{file} already exists; choose another directory\n")
    assert (list(tmp_path.iterdir()), file.read_bytes()) == ([file], b"mine")


def test_an_address_in_use_leaves_no_recording(tmp_path, socket_path, capsys):
    """A recording that was never begun would be taken for an empty one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert (
            command(
                "record",
                "--out",
                str(tmp_path / "new"),
                LISTEN=listen,
                PLUGIN__SOCKET=str(socket_path),
            )
            == 1
        )
    *_, line = capsys.readouterr().err.splitlines()
    remedy = "set another address, such as SPECDEC_LISTEN=127.0.0.1:9912"
    assert line.startswith(f"cannot bind {listen}: Address already in use; {remedy}")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGINT), slow(signal.SIGHUP)])
async def test_a_signal_leaves_a_recording_that_can_be_replayed(
    tmp_path, program, socket_path, number
):
    if signal.getsignal(number) is signal.SIG_IGN:  # by nohup; the program would inherit that
        signal.signal(number, signal.SIG_DFL)
    folder = tmp_path / "new"
    async with HttpVllm(FAST, plugin_socket=socket_path) as vllm:
        given = sidecar_settings(vllm.url, PLUGIN__SOCKET=socket_path)
        async with program("record", "--out", str(folder), **given) as process:
            await covered(folder, 0)  # it listens before it polls
            await work(vllm, 40, mix=MIXED)
            await covered(folder, 40)
            process.send_signal(number)
            out, err = await process.communicate()
    if number != signal.SIGKILL:
        assert process.returncode == 0, err
        assert re.match(
            rf"recorded 40 requests and \d+ polls in {re.escape(str(folder))}, ", out.decode()
        )
    (model,) = replay(folder, load_settings(None, given)).models
    assert model.engines[0].coverage == 1
    assert sum(part.acceptances.count for part in model.temperatures) == 40
