"""``check``: what the sidecar would see, before anything is deployed."""

import argparse
import asyncio
import sys
from collections.abc import Iterator

import aiohttp

from sidecar import wiring
from sidecar.alerting.alertmanager import alert_session, post_alerts
from sidecar.analysis.limitation import EXPLANATIONS, limitations
from sidecar.commands.check.vllm_command import findings
from sidecar.commands.check.vllm_flags import NEWEST, Version, read_version
from sidecar.engine.names import Counter
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.log import redacted
from sidecar.settings import Settings
from sidecar.settings.groups import Target

HELP = "print what the sidecar would see: settings, vLLM's version, speculation, limitations"
_REMEDIES = {
    "rejected": "alerting.alertmanagers takes base URLs, such as http://alertmanager:9093",
    "failed": "is Alertmanager up, and reachable from here?",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``check``."""
    parser.add_argument(
        "--args",
        metavar="COMMAND",
        help='check the speculation flags of this command line instead, such as "vllm serve … --speculative-config …"',
    )
    parser.add_argument(
        "--vllm-version",
        type=_version,
        default=NEWEST,
        metavar="VERSION",
        help=f"the vLLM version for --args (default: {'.'.join(map(str, NEWEST))})",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints its findings; returns 0 if every vLLM gave a usable page and every Alertmanager answered, else 1.

    With ``--args``: 0 if the command line has no problem, else 1; 2 if it cannot be read.
    """
    if arguments.args is not None:
        return _check_arguments(arguments.args, arguments.vllm_version)
    print(f"settings: valid ({arguments.config or 'no file'} and the environment)")
    print(f"request source: {settings.requests.source}{_source_note(settings)}")
    return max(asyncio.run(_check_all(settings)))


def _source_note(settings: Settings) -> str:
    """What the request source does not see as configured."""
    if settings.requests.source == "none":
        return "; acceptance is not split by temperature"
    if settings.requests.source != "traces" and settings.requests.ask_usage == "false":
        return "; streams whose clients do not ask for usage are not attributed (requests.ask_usage is false)"
    return ""


def _check_arguments(line: str, version: Version) -> int:
    try:
        found = findings(line, version)
    except ValueError as error:
        print(f"--args: {error}", file=sys.stderr)
        return 2
    faults = sum(one.is_fault for one in found)
    print(f"vLLM {'.'.join(map(str, version))}: {faults or 'no'} problem{'' if faults == 1 else 's'}")
    for one in found:
        print(f"  {'' if one.is_fault else 'note: '}{one.text}")
    return 1 if faults else 0


def _version(text: str) -> Version:
    version = read_version(text)
    if version is None:
        raise argparse.ArgumentTypeError("write a version such as 0.32")
    return version


async def _check_all(settings: Settings) -> list[int]:
    found = [await _check(target, settings) for target in settings.vllms]
    return found + [await _check_alertmanager(url, settings) for url in settings.alerting.alertmanagers]


async def _check(target: Target, settings: Settings) -> int:
    print(f"\n{target.name}: {redacted(target.vllm_url)}")
    try:
        async with wiring.page_source(target.vllm_url, settings) as source:
            page = await source.next()
    except ScrapeError as error:
        print(f"  no usable page ({error.reason}): {error}")
        print(f"  {_remedy(error, target.vllm_url)}")
        return 1
    for line in _describe(page):
        print(f"  {line}")
    return 0


async def _check_alertmanager(url: str, settings: Settings) -> int:
    print(f"\nAlertmanager: {redacted(url)}")
    async with alert_session(settings.alerting.timeout) as session:
        outcome, reason = await post_alerts(session, url)
    if outcome == "accepted":
        print("  accepts alerts")
        return 0
    print(f"  {outcome} ({reason}): {_REMEDIES[outcome]}")
    return 1


def _remedy(error: ScrapeError, url: str) -> str:
    if isinstance(error.__cause__, aiohttp.ClientSSLError):
        return "does vLLM serve TLS there (otherwise write http), and is its certificate's CA in vllm_ca_file?"
    if error.reason == "status" and url.rstrip("/").endswith("/v1"):
        return "vLLM's /metrics is not under /v1; write the URL without it."
    return error.remedy


def _describe(page: PageSnapshot) -> Iterator[str]:
    yield f"vLLM: {page.version}"
    if page.malformed:
        yield f"{page.malformed} malformed lines or histograms skipped"
    for engine in page.engines:
        yield f"model {engine.key.model_name}, engine {engine.key.engine}"
        yield f"  speculative decoding: {_speculation(engine)}"
        if engine.kv_cache_capacity_tokens is not None:
            yield f"  KV cache: {engine.kv_cache_capacity_tokens:,} tokens"
        for limitation in sorted(limitations(engine, several_processes=page.process_start is None)):
            yield f"  unknown ({limitation}): {EXPLANATIONS[limitation]}"


def _speculation(engine: EngineSnapshot) -> str:
    drafted = engine.counters.get(Counter.DRAFT_TOKENS)
    accepted = engine.counters.get(Counter.ACCEPTED_TOKENS)
    if engine.traits or drafted is None or accepted is None:
        return f"nothing to compute from ({', '.join(sorted(engine.traits)) or 'off, or --disable-log-stats'})"
    if not drafted:
        return "on; nothing drafted yet"
    positions = len(engine.accepted_per_position)
    return f"on, {positions} draft positions; {accepted / drafted:.1%} of {drafted:,.0f} draft tokens accepted so far"
