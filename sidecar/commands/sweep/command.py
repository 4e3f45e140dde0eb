"""``sweep``: measure a vLLM by temperature and load, and say whether speculation pays there."""

import argparse
import asyncio
import json
import math
import sys
from dataclasses import asdict
from typing import Final

from sidecar.commands.arguments import base_url, duration, file_to_write, listed, number, whole, written
from sidecar.commands.stopping import stop_on_signals
from sidecar.commands.sweep.measured import SweepResult, encode
from sidecar.commands.sweep.options import MOST_AT_ONCE, SweepOptions, add_request_arguments, request_options
from sidecar.commands.sweep.render import text
from sidecar.commands.sweep.summary import summarize
from sidecar.commands.sweep.sweep import sweep
from sidecar.commands.sweep.workload import Load, Workload, levels
from sidecar.settings import Settings

HELP = "measure a vLLM by temperature and load, and say whether speculation pays"
_MOST: Final = 10_000
_TEMPERATURE: Final = number(10.0, "temperatures from 0 to 10", above=-math.ulp(0))  # 0 included


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sweep``."""
    parser.add_argument("--url", type=base_url, help="the vLLM to measure (default: the setting vllm_url)")
    parser.add_argument("--baseline-url", type=base_url, metavar="URL", help="the same model without speculation")
    parser.add_argument("--temperatures", type=listed(_TEMPERATURE), metavar="T,T", help="default: 0,0.3,0.5,0.7,1")
    mix = "also measure a mix, such as 0.1:50,1:50, and each of its temperatures alone; repeatable"
    parser.add_argument("--mix", type=_mix, action="append", metavar="T:WEIGHT,…", help=mix)
    parser.add_argument(
        "--concurrency", type=listed(whole(MOST_AT_ONCE)), metavar="N,N", help="requests in flight (default: 1,8)"
    )
    rate = listed(number(MOST_AT_ONCE, f"requests per second up to {MOST_AT_ONCE}, such as 2,5"))
    parser.add_argument("--rate", type=rate, metavar="R,R", help="Poisson arrivals: requests per second")
    parser.add_argument(
        "--requests", type=whole(_MOST), default=32, metavar="N", help="per level and round (default: 32)"
    )
    rounds = "repeat all levels; `compare` needs 4 or more to estimate how much runs differ (default: 1)"
    parser.add_argument("--rounds", type=whole(_MOST), default=1, metavar="N", help=rounds)
    end = "stop after this long and report what was measured (default: 30m)"
    parser.add_argument("--duration", type=duration, default=1800.0, metavar="TIME", help=end)
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.add_argument("--save", type=file_to_write, metavar="FILE", help="also write the result, for `compare`")
    add_request_arguments(parser)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if everything was measured and, with ``--save``, saved; else 1.

    Raises:
        InputError: ``--prompts`` cannot be used.
        MeasurementError: a server answers no request, or the baseline speculates.
        SettingsError: the API key cannot be used.
    """
    result = asyncio.run(_run(_options(arguments, settings)))
    levels = summarize(result, settings.thresholds)
    if arguments.json:
        about = {name: getattr(result, name) for name in ("model", "max_tokens", "rounds", "complete", "faults")}
        print(json.dumps({**about, "levels": [asdict(one) for one in levels]}, indent=2, allow_nan=False))
    else:
        print("\n".join(text(result, levels)))
    saved = arguments.save is None or written("--save", arguments.save, encode(result))
    return 0 if saved and result.complete else 1


async def _run(options: SweepOptions) -> SweepResult:
    clock = asyncio.get_running_loop().time
    begun, ended, said = clock(), 0, ""

    def on_end(what: str) -> None:
        nonlocal ended, said
        if what != said:
            left = f", about {(clock() - begun) / ended * (options.total - ended):.0f} s left" if ended else ""
            print(f"{ended}/{options.total} requests done{left}; measuring {what}", file=sys.stderr)
        ended, said = ended + 1, what

    return await sweep(options, stop_on_signals(), on_end)


def _options(arguments: argparse.Namespace, settings: Settings) -> SweepOptions:
    mixes = arguments.mix or ()
    at_once = arguments.concurrency or (() if arguments.rate else (1, 8))
    baseline = () if arguments.baseline_url is None else (arguments.baseline_url,)
    return SweepOptions(
        servers=(arguments.url or settings.vllm_url, *baseline),
        requests=request_options(arguments, settings),
        levels=levels(
            arguments.temperatures or (() if mixes else (0.0, 0.3, 0.5, 0.7, 1.0)),
            mixes,
            (*(Load(at_once=one) for one in at_once), *(Load(rate=one) for one in arguments.rate or ())),
        ),
        count=arguments.requests,
        rounds=arguments.rounds,
        seconds=arguments.duration,
        settings=settings,
    )


def _mix(text: str) -> Workload:
    """Parses ``0.1:50,1.0:50`` into temperatures and their weights."""
    pairs = [part.partition(":") for part in text.split(",")]
    weight = number(1e9, "two temperatures or more with weights above 0, such as 0.1:50,1.0:50")
    found = {_TEMPERATURE(temperature): weight(value) for temperature, _, value in pairs}
    if len(found) < 2:
        weight("")
    return Workload(tuple(sorted(found.items())))
