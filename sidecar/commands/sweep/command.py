"""``sweep``: measure a vLLM by temperature and load, and say whether speculation pays there."""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import uvloop

from sidecar import wiring
from sidecar.commands.arguments import base_url, duration, integers, numbers
from sidecar.commands.sweep.options import SweepOptions
from sidecar.commands.sweep.prompts import BUILT_IN, PromptsError, read_prompts
from sidecar.commands.sweep.render import Progress, as_json, text
from sidecar.commands.sweep.sweep import SweepError, SweepResult, sweep
from sidecar.errors import SettingsError
from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, Endpoint
from sidecar.settings import Settings

HELP = "measure a vLLM by temperature and load, and say whether speculation pays"
_INTERRUPTED = 130  # as a shell has it for SIGINT
_ENDPOINTS: dict[str, Endpoint] = {"chat": CHAT, "completions": COMPLETIONS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``sweep`` takes."""
    parser.add_argument("--url", type=base_url, help="the vLLM to measure (default: the setting vllm_url)")
    parser.add_argument("--baseline-url", type=base_url, metavar="URL", help="the same model without speculation")
    parser.add_argument("--model", help="the name to ask for (default: the first under /v1/models)")
    parser.add_argument("--endpoint", choices=tuple(_ENDPOINTS), default="chat", help="default: chat")
    parser.add_argument(
        "--temperatures", type=numbers, default=(0.0, 0.3, 0.5, 0.7, 1.0), help="default: 0,0.3,0.5,0.7,1"
    )
    parser.add_argument("--concurrency", type=integers, default=(1, 8), help="requests at once (default: 1,8)")
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="for each level (default: 32)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="for each request (default: 128)")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="one a line, or JSON lines (default: 20 built in)")
    parser.add_argument("--request-timeout", type=duration, default=120.0, metavar="TIME", help="default: 120s")
    parser.add_argument(
        "--duration", type=duration, default=1800.0, metavar="TIME", help="end by then, with a part (default: 30m)"
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable with a key that the servers want")
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 with all measured, 1 with a part or nothing, 2 for bad arguments, 130 with a part after Ctrl-C."""
    try:
        asked = _options(arguments, settings)
        prompts = BUILT_IN if arguments.prompts is None else read_prompts(arguments.prompts)
        result, interrupted = uvloop.run(_run(asked, prompts))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except PromptsError as error:
        print(f"--prompts: {error}", file=sys.stderr)
        return 2
    except SweepError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(as_json(result), indent=2, allow_nan=False) if arguments.json else "\n".join(text(result)))
    if interrupted:
        return _INTERRUPTED
    return 0 if result.complete and not any(level.baseline_drafts for level in result.levels) else 1


async def _run(asked: SweepOptions, prompts: tuple[str, ...]) -> tuple[SweepResult, bool]:
    stop = asyncio.Event()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        stop.set()

    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, interrupt)
    servers = 1 if asked.baseline_url is None else 2
    progress = Progress(len(asked.levels) * asked.requests * servers, sys.stderr)
    try:
        return await sweep(asked, prompts, stop, progress), interrupted
    finally:
        progress.clear()


def _options(arguments: argparse.Namespace, settings: Settings) -> SweepOptions:
    key = None
    if arguments.api_key_env is not None:
        key = os.environ.get(arguments.api_key_env)
        if not key or not key.isascii() or not key.isprintable():
            raise SettingsError([f"--api-key-env={arguments.api_key_env}: no key in it; set it, or leave this out"])
    return SweepOptions(
        url=arguments.url or settings.vllms[0].vllm_url,
        baseline_url=arguments.baseline_url,
        model=arguments.model,
        endpoint=_ENDPOINTS[arguments.endpoint],
        temperatures=arguments.temperatures,
        at_once=arguments.concurrency,
        requests=arguments.requests,
        max_tokens=arguments.max_tokens,
        request_seconds=arguments.request_timeout,
        seconds=arguments.duration,
        api_key=key,
        tls=wiring.fetch(settings).tls,
        page_limits=wiring.page_limits(settings),
        thresholds=wiring.verdicts(settings),
    )
