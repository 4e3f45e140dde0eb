"""``demo``: the sidecar on a simulated vLLM with traffic that turns from cold to hot and back."""

import argparse
import asyncio
import contextlib
import signal
import socket
import sys

import uvloop

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.demo.traffic import Traffic, TrafficOptions, cold_hot_cold
from sidecar.errors import ListenError
from sidecar.settings import Settings
from sidecar.settings.addresses import Address
from sidecar.settings.field_types import parse_duration
from sidecar.settings.groups import Proxy, Requests

_CYCLE = 300.0  # seconds from cold to hot and back
_LONGEST = 24 * 3600.0  # seconds
_MANY = 1_000_000_000  # requests: the demo ends by time or by hand

_WHERE = """
specdec-sidecar demo: a simulated vLLM with speculative decoding, and traffic that turns from cold to hot and back.

  look        http://{address}/
  metrics     http://{address}/metrics
  status      http://{address}/api/v1/status
  the proxy   http://{proxy}/v1 (send requests of your own: model "demo")
  the "vLLM"  {vllm}/metrics

Numbers appear within seconds; acceptance falls as the traffic turns hot, {cycle:.0f} minutes a round. Ctrl-C ends it.
"""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 when stopped, 1 where the address to listen on can't be had, 2 for a bad duration."""
    try:
        seconds = parse_duration(arguments.duration, 1, _LONGEST) if arguments.duration else None
    except ValueError as error:
        print(f"--duration={arguments.duration}: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_run(settings, seconds))
    except ListenError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _run(settings: Settings, seconds: float | None) -> None:
    stopped = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stopped.set)
    async with SimulatedVllm(SimulatorOptions()) as vllm:
        proxy = Address("127.0.0.1", _free_port())
        traffic = Traffic(
            TrafficOptions(f"http://{proxy}", phases=cold_hot_cold(_CYCLE), repeat=True, max_requests=_MANY)
        )
        async with running(_watching(settings, vllm.url, proxy)) as address:
            print(_WHERE.format(address=address.local, proxy=proxy, vllm=vllm.url, cycle=_CYCLE / 60), flush=True)
            sending = asyncio.create_task(traffic.run())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), seconds)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    print(f"{traffic.summary.completed} requests completed, {traffic.summary.failed} failed")


def _watching(settings: Settings, vllm_url: str, proxy: Address) -> Settings:
    """The settings, for the simulated vLLM and with the sidecar's proxy in front of it."""
    return settings.model_copy(
        update={
            "vllm_url": vllm_url,
            "targets": (),
            "requests": Requests(source="proxy"),
            "proxy": Proxy(listen=proxy),
        }
    )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
