"""``sweep``: measure a vLLM by temperature and load, and say whether speculation pays there."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uvloop

from sidecar import wiring
from sidecar.commands.arguments import base_url, duration, file_to_write, integers, numbers, written
from sidecar.commands.stopping import stop_on_signals
from sidecar.commands.sweep.html import html
from sidecar.commands.sweep.options import ENDPOINTS, Load, SweepOptions
from sidecar.commands.sweep.progress import Progress
from sidecar.commands.sweep.prompts import BUILT_IN, read_prompts
from sidecar.commands.sweep.render import text
from sidecar.commands.sweep.results import SweepResult, as_json, save
from sidecar.commands.sweep.sweep import sweep
from sidecar.errors import SettingsError
from sidecar.settings import Settings

HELP = "measure a vLLM by temperature and load, and say whether speculation pays"
_INTERRUPTED: Final = 130  # exit code that shells give for SIGINT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sweep``."""
    parser.add_argument("--url", type=base_url, help="the vLLM to measure (default: the setting vllm_url)")
    parser.add_argument("--baseline-url", type=base_url, metavar="URL", help="the same model without speculation")
    parser.add_argument("--model", help="the model to request (default: the first under /v1/models)")
    parser.add_argument("--endpoint", choices=tuple(ENDPOINTS), default="chat", help="default: chat")
    parser.add_argument("--temperatures", type=numbers, metavar="T,T", help="default: 0,0.3,0.5,0.7,1 or --mix's")
    parser.add_argument(
        "--mix",
        type=_mix,
        action="append",
        metavar="T:WEIGHT,…",
        help="also measure mixed requests, such as 0.1:50,1.0:50, against each temperature alone; repeatable",
    )
    parser.add_argument("--concurrency", type=integers, metavar="N,N", help="requests in flight (default: 1,8)")
    parser.add_argument(
        "--rate",
        type=_rates,
        metavar="R,R",
        help="Poisson arrivals: requests per second, or shares of the server's capacity, such as 30%%,80%%",
    )
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="per level and round (default: 32)")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        metavar="N",
        help="repeat all levels; `compare` needs 4 or more to estimate how much runs differ (default: 1)",
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="per request (default: 128)")
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="text or JSON lines, or a JSON list such as ShareGPT's; the first 10,000 (default: 20 built in)",
    )
    parser.add_argument("--request-timeout", type=duration, default=120.0, metavar="TIME", help="default: 120s")
    parser.add_argument(
        "--duration",
        type=duration,
        default=1800.0,
        metavar="TIME",
        help="stop after this long and report what was measured (default: 30m)",
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the servers' API key")
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.add_argument("--html", type=file_to_write, metavar="FILE", help="also write a page with charts")
    parser.add_argument("--save", type=file_to_write, metavar="FILE", help="also write the result, for `compare`")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if everything was measured, 1 if only a part was, 130 after Ctrl-C.

    Raises:
        InputError: ``--prompts`` cannot be used.
        MeasurementError: a server answers no request.
        SettingsError: an argument is out of its range.
    """
    options = _options(arguments, settings)
    prompts = BUILT_IN if arguments.prompts is None else read_prompts(arguments.prompts)
    result, interrupted = uvloop.run(_run(options, prompts))
    print(json.dumps(as_json(result), indent=2, allow_nan=False) if arguments.json else "\n".join(text(result)))
    saved = arguments.save is None or written("--save", arguments.save, lambda: save(result, arguments.save))
    if arguments.html is not None:
        saved = written("--html", arguments.html, lambda: arguments.html.write_text(html(result))) and saved
    if interrupted:
        return _INTERRUPTED
    return 0 if saved and result.complete and not any(level.baseline_drafts for level in result.levels) else 1


async def _run(options: SweepOptions, prompts: tuple[str, ...]) -> tuple[SweepResult, bool]:
    stop = stop_on_signals()
    progress = Progress(options.total_requests, sys.stderr)
    clock = asyncio.get_running_loop().time
    begun = clock()
    try:
        result = await sweep(options, prompts, stop, progress)
        return result, stop.is_set() and clock() - begun < options.seconds
    finally:
        progress.clear()


def _options(arguments: argparse.Namespace, settings: Settings) -> SweepOptions:
    key = None
    if arguments.api_key_env is not None:
        key = os.environ.get(arguments.api_key_env)
        if not key or not key.isascii() or not key.isprintable():
            raise SettingsError([f"--api-key-env={arguments.api_key_env}: empty or not set, or not printable ASCII"])
    mixes: tuple[Mapping[float, float], ...] = tuple(arguments.mix or ())
    at_once = arguments.concurrency or (() if arguments.rate else (1, 8))
    return SweepOptions(
        url=arguments.url or settings.vllms[0].vllm_url,
        baseline_url=arguments.baseline_url,
        model=arguments.model,
        endpoint=ENDPOINTS[arguments.endpoint],
        temperatures=arguments.temperatures or (() if mixes else (0.0, 0.3, 0.5, 0.7, 1.0)),
        mixes=mixes,
        loads=(*(Load(at_once=one) for one in at_once), *(arguments.rate or ())),
        requests=arguments.requests,
        rounds=arguments.rounds,
        max_tokens=arguments.max_tokens,
        request_seconds=arguments.request_timeout,
        seconds=arguments.duration,
        api_key=key,
        tls=wiring.tls(settings),
        page_limits=wiring.page_limits(settings),
        thresholds=wiring.verdicts(settings),
    )


def _mix(text: str) -> dict[float, float]:
    """``0.1:50,1.0:50`` as temperatures and their weights."""
    try:
        pairs = [part.split(":") for part in text.split(",")]
        found = {float(temperature): float(weight) for temperature, weight in pairs}
    except ValueError:
        found = {}
    if len(found) < 2:
        raise argparse.ArgumentTypeError("write two temperatures or more with their weights, such as 0.1:50,1.0:50")
    return found


def _rates(text: str) -> tuple[Load, ...]:
    """``2,5`` requests per second, ``30%,80%`` of the capacity."""
    try:
        return tuple(
            Load(share=float(part.removesuffix("%")) / 100) if part.endswith("%") else Load(rate=float(part))
            for part in map(str.strip, text.split(","))
        )
    except ValueError:
        raise argparse.ArgumentTypeError("write requests per second or percentages, such as 2,5 or 30%,80%") from None
