"""Starts everything that a fault can hit."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from benchmarks.faults.clients import Clients
from benchmarks.faults.programs import Program
from benchmarks.faults.relay import Relay
from benchmarks.faults.rig import INTERVAL, RESEND, Rig, Source
from tests.debian_servers import free_port


def _prometheus(folder: Path, page: int, alertmanager: int, own: int) -> Path:
    """Its configuration, with the ports of our page, of Alertmanager and of its own page."""
    config = {
        "global": {"scrape_interval": f"{INTERVAL:g}s", "scrape_timeout": f"{INTERVAL:g}s"},
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for job, port in (("sidecar", page), ("prometheus", own))
        ],
    }
    path = folder / "prometheus.yaml"
    path.write_text(json.dumps(config))  # which is YAML
    return path


@asynccontextmanager
async def rig(
    folder: Path, source: Source, *, command: tuple[str, ...] = ("run",), prefix: tuple[str, ...] = ()
) -> AsyncIterator[Rig]:
    """All of it, warm: the sidecar is up in Prometheus, and its alert is at Alertmanager.

    ``command`` is the sidecar's, ``prefix`` what starts it.
    """
    ports = {name: free_port() for name in ("vllm", "sidecar", "proxy", "prometheus", "alertmanager")}
    at = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    async with AsyncExitStack() as stack:
        vllm_link = await stack.enter_async_context(Relay(ports["vllm"]))
        page_link = await stack.enter_async_context(Relay(ports["sidecar"]))
        link = f"http://127.0.0.1:{vllm_link.port}"
        socket = {"SPECDEC_MIDDLEWARE__SOCKET": str(folder / "events.sock")}
        environment = socket | {
            "SPECDEC_VLLM_URL": link,
            "SPECDEC_LISTEN": f"127.0.0.1:{ports['sidecar']}",
            "SPECDEC_REQUESTS__SOURCE": source,
            "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{ports['proxy']}",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
            "SPECDEC_ALERTING__ALERTMANAGERS": json.dumps([at["alertmanager"]]),
            "SPECDEC_ALERTING__INTERVAL": "1s",
            "SPECDEC_ALERTING__PACE": "0",
            "SPECDEC_ALERTING__RESEND": f"{RESEND:g}s",
        }
        clock = (sys.executable, "-m", "benchmarks.faults.jumping")
        configuration = folder / "alertmanager.yaml"
        configuration.write_text(json.dumps({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}))
        programs = {
            "vllm": Program(folder / "vllm.log", *clock, "benchmarks.faults.vllm", str(ports["vllm"]), "1",
                            environment=socket),
            "sidecar": Program(folder / "sidecar.log", *prefix, *clock, "sidecar", *command, environment=environment),
            "prometheus": Program(
                folder / "prometheus.log",
                "prometheus",
                f"--config.file={_prometheus(folder, page_link.port, ports['alertmanager'], ports['prometheus'])}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
            ),
            "alertmanager": Program(
                folder / "alertmanager.log",
                "prometheus-alertmanager",
                f"--config.file={configuration}",
                f"--storage.path={folder / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{ports['alertmanager']}",
                "--cluster.listen-address=",
            ),
        }  # fmt: skip
        for program in programs.values():
            stack.callback(program.kill)
        made = Rig(
            source=source,
            folder=folder,
            programs=programs,
            health={
                "vllm": f"{at['vllm']}/health",
                "sidecar": f"{at['sidecar']}/-/healthy",
                "prometheus": f"{at['prometheus']}/-/ready",
                "alertmanager": f"{at['alertmanager']}/-/ready",
            },
            clients=Clients(at["proxy"] if source == "proxy" else link, model="demo"),
            direct=Clients(link, model="demo") if source == "proxy" else None,
            vllm_link=vllm_link,
            page_link=page_link,
            prometheus_url=at["prometheus"],
            http=await stack.enter_async_context(aiohttp.ClientSession()),
        )
        for name in programs:
            await made.start(name)
        for clients in (made.clients, made.direct):
            if clients is not None:
                clients.start()
                stack.push_async_callback(clients.stop)
        await made.recovered()
        await made.alerted()
        yield made
