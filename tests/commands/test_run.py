import asyncio
import json
import signal

import pytest

from sidecar.demo.server import SimulatedVllm

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
        async with program("run", SPECDEC_VLLM_URL=vllm.url, SPECDEC_LISTEN="127.0.0.1:0") as process:
            address = (await log_line(process, "sidecar started"))["address"]
            await log_line(process, "found an engine")
            async with http.get(f"http://{address}/metrics", headers={"Accept-Encoding": "identity"}) as response:
                assert "specdec_up 1.0" in (await response.text()).splitlines()
            assert (await finished("healthcheck", SPECDEC_LISTEN=address))[0] == 0
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        code, _, err = await finished("healthcheck", SPECDEC_LISTEN=address)
        assert code == 1
        assert err == f"no answer at {address}: ConnectionRefusedError; is the sidecar up, with this SPECDEC_LISTEN?\n"


async def test_run_reports_an_address_in_use(program, finished):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        address = (await log_line(process, "sidecar started"))["address"]
        code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN=address)
        assert code == 1
        said = json.loads(err.splitlines()[-1])
        assert (said["event"], said["address"], said["remedy"]) == ("cannot bind", address, "set SPECDEC_LISTEN")
        assert "Traceback" not in err


@pytest.mark.parametrize("source", ["proxy", "traces"])
async def test_run_names_the_setting_of_a_source_whose_address_is_in_use(program, finished, source):
    async with program("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0") as process:
        taken = (await log_line(process, "sidecar started"))["address"]
        variable = f"SPECDEC_{source.upper()}__LISTEN"
        asked = {"SPECDEC_REQUESTS__SOURCE": source, variable: taken, "SPECDEC_LISTEN": "127.0.0.1:0"}
        code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, **asked)
    said = json.loads(err.splitlines()[-1])
    assert (code, said["address"], said["remedy"]) == (1, taken, f"set {variable}")


async def test_run_names_the_socket_that_cannot_be_created(finished):
    asked = {"SPECDEC_REQUESTS__SOURCE": "middleware", "SPECDEC_MIDDLEWARE__SOCKET": "/proc/none/events.sock"}
    code, _, err = await finished("run", SPECDEC_VLLM_URL=NOWHERE, SPECDEC_LISTEN="127.0.0.1:0", **asked)
    said = json.loads(err.splitlines()[-1])
    assert (code, said["address"]) == (1, "/proc/none/events.sock")
    assert said["remedy"] == "set SPECDEC_MIDDLEWARE__SOCKET"


async def test_a_lasting_fault_is_logged_once(program):
    async with program(
        "run",
        SPECDEC_VLLM_URL=NOWHERE,
        SPECDEC_LISTEN="127.0.0.1:0",
        SPECDEC_SCRAPE_INTERVAL="0.1s",
        SPECDEC_SCRAPE_BACKOFF_MAX="0.1s",
    ) as process:
        await log_line(process, "sidecar started")
        await log_line(process, "cannot read vLLM's page")
        with pytest.raises(TimeoutError):  # dozens of polls fail meanwhile; none of them says anything
            async with asyncio.timeout(2):
                await process.stderr.readline()
