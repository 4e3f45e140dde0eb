"""The sidecar's process is killed or suspended under traffic."""

import signal
import sys

import pytest

from benchmarks.faults.programs import Program
from tests.debian_servers import free_port
from tests.faults.conftest import ended


@pytest.fixture
async def sidecar(vllm, socket, tmp_path):
    """Makes a sidecar's process; gives the program, its page's address and where requests go."""
    made = []

    def make(source):
        page, proxy = free_port(), free_port()
        settings = {
            "SPECDEC_VLLM_URL": vllm.url,
            "SPECDEC_LISTEN": f"127.0.0.1:{page}",
            "SPECDEC_REQUESTS__SOURCE": source,
            "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{proxy}",
            "SPECDEC_MIDDLEWARE__SOCKET": socket,
            "SPECDEC_SCRAPE_INTERVAL": "200ms",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
        }
        command = (sys.executable, "-m", "sidecar", "run")
        made.append(Program(tmp_path / "sidecar.log", *command, environment=settings))
        return made[-1], f"http://127.0.0.1:{page}", vllm.url if source == "middleware" else f"http://127.0.0.1:{proxy}"

    yield make
    for program in made:
        program.kill()


async def test_a_killed_sidecar_costs_no_request_and_the_next_one_continues(vllm, sidecar, sending, until):
    program, page, target = sidecar("middleware")
    program.start()
    clients = sending(target)
    await until(page, "specdec_requests_total", 30, least=True)
    program.kill()
    await ended(clients, 30)
    program.start()
    # The middleware kept what ended meanwhile.
    await until(page, "specdec_requests_total", 30, least=True)
    await clients.stop()
    assert not clients.since().failures
    tokens = vllm.page.registry.get_sample_value(
        "vllm:generation_tokens_total", {"model_name": "demo", "engine": vllm.options.engine}
    )
    await until(page, "specdec_generation_tokens_total", tokens)
    assert tokens == clients.tokens


async def test_a_suspended_sidecar_holds_no_request_up_and_then_sees_all(sidecar, sending, until, counted):
    program, page, target = sidecar("middleware")
    program.start()
    await until(page, "specdec_up", 1)
    clients = sending(target)
    await until(page, "specdec_requests_total", 10, least=True)
    program.send(signal.SIGSTOP)
    await ended(clients, 60)
    program.send(signal.SIGCONT)
    await clients.stop()
    assert not clients.since().failures
    await until(page, "specdec_requests_total", len(clients.ended))
    assert await counted(page, "specdec_request_events_dropped_total") == 0


async def test_sigterm_breaks_no_request_in_flight(sidecar, sending, until):
    program, page, target = sidecar("proxy")
    program.start()
    await until(page, "specdec_up", 1)
    clients = sending(target)
    await until(page, "specdec_requests_total", 10, least=True)
    assert await program.stop() == 0
    await clients.stop()
    assert set(clients.since().failures) <= {"refused"}
