import asyncio
import json
import os
import signal

from sidecar.demo.server import SimulatedVllm
from tests.debian_servers import free_port

NOWHERE = "http://127.0.0.1:1"


async def log_line(process, event):
    """The first line of the log with that event."""
    while line := await process.stderr.readline():
        found = json.loads(line)
        if found["event"] == event:
            return found
    raise AssertionError(f"no log line {event!r}")


async def test_run_serves_until_terminated(program, finished, http):
    async with SimulatedVllm() as vllm:
        listen = f"127.0.0.1:{free_port()}"
        async with program("run", SPECDEC_VLLM_URL=vllm.url, SPECDEC_LISTEN=listen) as process:
            page = ""
            address = (await log_line(process, "sidecar started"))["address"]
            while "specdec_up 1.0" not in page.splitlines():
                async with http.get(f"http://{address}/metrics", headers={"Accept-Encoding": "identity"}) as response:
                    page = await response.text()
            while (await finished("healthcheck", SPECDEC_LISTEN=address))[0] != 0:
                pass  # it gives an answer two seconds
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        code, _, err = await finished("healthcheck", SPECDEC_LISTEN=address)
        assert code == 1
        assert err == f"no answer at {address}: ConnectionRefusedError; is the sidecar up, with this SPECDEC_LISTEN?\n"


async def test_terminated_while_it_starts_it_exits_as_later(program, tmp_path):
    """Here while it opens its settings, which nobody has written yet."""
    file = tmp_path / "settings"
    os.mkfifo(file)
    async with program("run", "--config", str(file)) as process:
        writer = await asyncio.to_thread(os.open, file, os.O_WRONLY)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        os.close(writer)


async def test_run_reports_an_address_in_use(program, finished):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        address = (await log_line(process, "sidecar started"))["address"]
        code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN=address)
        assert code == 1
        assert err.splitlines()[-1] == (
            f"cannot bind {address}: Address already in use; set another address, such as SPECDEC_LISTEN=127.0.0.1:9912"
        )
        assert "Traceback" not in err


async def test_a_socket_that_cannot_be_made_is_named_once_and_nothing_else_fails(program, http):
    asked = {"SPECDEC_LISTEN": "127.0.0.1:0", "SPECDEC_PLUGIN__SOCKET": "/proc/none/plugin.sock"}
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, **asked) as process:
        said = await log_line(
            process,
            "cannot listen for the plug-in, so there is no split by temperature; "
            "set SPECDEC_PLUGIN__SOCKET, or stop the sidecar that uses this socket",
        )
        address = (await log_line(process, "sidecar started"))["address"]
        async with http.get(f"http://{address}/-/healthy") as response:
            assert response.status == 200
    assert said["socket"] == "/proc/none/plugin.sock"
