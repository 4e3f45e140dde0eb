"""``check``: what the sidecar would see, before anything is deployed.

With ``--args``, what is wrong with a command line of vLLM, before it is used.
"""

import argparse
import asyncio
import os
import ssl
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import structlog

from sidecar.alerting.push import alert_session, post_alerts
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.report import EngineReport, Report
from sidecar.analysis.split.plugin_state import BAD
from sidecar.analysis.state import State
from sidecar.commands.arguments import (
    CACERT_HELP,
    TLS_HINT,
    add_sidecar_user,
    add_vllm_url,
    with_sidecar_user,
    with_vllm_cacert,
    with_vllm_url,
)
from sidecar.engine.names import Counter
from sidecar.engine.page_source import page_source
from sidecar.engine.restarts import Identity
from sidecar.engine.scrape import Poller
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import AnotherServer, CountersFell, ScrapeError, TlsRefused, Unreachable
from sidecar.log import redacted
from sidecar.requests.receiver import PluginReceiver, has_listener
from sidecar.settings import Settings
from sidecar.wording.notes import LIMITATIONS
from sidecar.wording.numbers import counted
from sidecar.wording.plugin import plugin_sentence
from specdec_tools.commands.sidecar_status import own_url, sidecar_status
from specdec_tools.serve_line.findings import line_findings
from specdec_tools.serve_line.obsolete import NEWEST, Version, shown, vllm_version
from specdec_tools.serve_line.reading import read_line

HELP = (
    "print what the sidecar would see: "
    "settings, vLLM's engines, speculation, the plug-in, limitations"
)
_LISTEN: Final = 2.0  # seconds: while requests run, a disconnected plug-in retries once a second
_PAUSE: Final = 0.1
_POLLS: Final = 6
_BETWEEN_POLLS: Final = 0.05
_SHARED: Final = (
    "several vLLM servers answer at this address: give each its own sidecar, with its own address"
)
_NO_FOLDER: Final = (
    "not heard, because {} does not exist. The sidecar creates it when it runs; vLLM must see the"
    " same folder, so in Kubernetes both containers mount one volume there."
)
_TAKEN: Final = (
    "not heard, because another process listens at {}. If that is the sidecar that runs here, set"
    " SPECDEC_LISTEN as it does, and this command asks it. If it is another vLLM's, give this one a"
    " socket of its own (SPECDEC_PLUGIN__SOCKET)."
)
_ASKS_WHO: Final = ("status 401", "status 403")
_WHO: Final = (
    'it asks who sends: set alerting.headers, such as {"X-Scope-OrgID": "TENANT"} for Mimir, or'
    " put name and password into the URL"
)
_REMEDIES: Final = {
    "rejected": "alerting.alertmanagers takes base URLs, such as http://alertmanager:9093",
    "failed": (
        "is Alertmanager up and reachable from here? With https, the CA of its certificate must be"
        " one of the system's, or in the file that SSL_CERT_FILE names"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``check``."""
    add_vllm_url(parser)
    parser.add_argument("--cacert", type=Path, metavar="FILE", help=CACERT_HELP)
    add_sidecar_user(parser)

    line = (
        "check what this command line of vLLM says of speculation instead, such as"
        ' "vllm serve … --speculative-config …"'
    )
    parser.add_argument("--args", metavar="COMMAND", help=line)

    version = (
        "vLLM's version, for --args (default: the tag of the image that the command names, else"
        f" {shown(NEWEST)})"
    )
    parser.add_argument("--vllm-version", type=vllm_version, metavar="VERSION", help=version)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Prints its findings; returns 1 if one of them is a failure, else 0.

    Failures: the page is unusable, a plug-in failed, its socket cannot be opened, an Alertmanager
    takes no alerts. A plug-in that is not heard is none, as only the split by temperature needs it,
    nor is a socket at which another process listens, as a sidecar that already runs does.
    With ``--args``, a failure is what does not work in the command line.

    Raises:
        InputError: the certificates, or the file with the password of a sidecar that runs here,
            cannot be used, or the command line cannot be read.
    """
    if arguments.args is not None:
        return _check_line(arguments.args, arguments.vllm_version)

    settings = with_vllm_url(settings, arguments.vllm_url)
    settings = with_vllm_cacert(settings, arguments.cacert)
    own = with_sidecar_user(own_url(settings), arguments.user_file, os.environ)
    source = "environment variables, no file"
    if arguments.config:
        source = f"{arguments.config} and environment variables"
    print(f"settings: valid ({source})")
    return asyncio.run(_check(settings, own))


def _check_line(text: str, given: Version | None) -> int:
    line = read_line(text)
    version = given or NEWEST
    source = ""
    if given is None and line.image_version is not None:
        version = vllm_version(line.image_version)
        source = " (the image's tag)"

    found = line_findings(line, version)
    summary = counted(len(found.faults), "problem")
    if not found.faults:
        summary = (
            "nothing removed or obsolete found; vLLM itself finds wrong or missing values when it "
            "starts"
        )

    print(f"vLLM {shown(version)}{source}: {summary}")
    for fault in found.faults:
        print(f"  {fault}")
    for note in found.notes:
        print(f"  note: {note}")
    return 1 if found.faults else 0


async def _check(settings: Settings, own: str) -> int:
    state = State(settings, time.time())
    is_shared = await _poll(state, settings)
    report = state.report(time.time())

    print(f"\nvLLM: {redacted(settings.vllm_url)}")
    for line in [_SHARED] if is_shared else _page(report, settings):
        print(f"  {line}")

    is_read = report.scrape.last_error is None and not is_shared
    plugin = await _running(own)
    if plugin is None and is_read:
        plugin = await _listen(state, settings)

    failed, text = plugin or (False, "not checked, because vLLM's metrics cannot be read")
    print(f"\nplug-in: {text}")

    code = 0 if is_read and not failed else 1
    for url in settings.alerting.alertmanagers:
        code = max(code, await _check_alertmanager(url, settings))

    return code


class _Servers:
    """A scrape sink that passes everything to a state, and notes which servers answered."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._first: Identity | None = None
        self.is_shared = False  # whether several servers answer

    def scraped(self, at: float, duration: float, interval: float, page: PageSnapshot) -> None:
        """See ``ScrapeSink``."""
        self._state.scraped(at, duration, interval, page)
        identity = Identity.of(page)
        self._first = self._first or identity
        is_doubted = isinstance(self._state.last_error, AnotherServer | CountersFell)
        is_first = identity == self._first or identity.is_same(self._first)
        self.is_shared |= is_doubted or not is_first

    def failed(self, at: float, error: ScrapeError) -> None:
        """See ``ScrapeSink``."""
        self._state.failed(at, error)


async def _poll(state: State, settings: Settings) -> bool:
    """Polls a few times, each on a new connection; returns whether several servers answer.

    A Service or a load balancer chooses a server for each connection.
    """
    sink = _Servers(state)
    async with page_source(settings, settings.limits, whole=True, is_persistent=False) as source:
        poller = Poller(source, settings, sink)
        for _ in range(_POLLS):
            await poller.poll()
            if sink.is_shared or state.last_error is not None:
                break
            await asyncio.sleep(_BETWEEN_POLLS)
    return sink.is_shared


async def _running(own: str) -> tuple[bool, str] | None:
    """Whether the plug-in failed, and its text, according to a sidecar that already runs here.

    Such a sidecar has the socket. None if there is none.
    """
    url = redacted(own)

    try:
        status = await sidecar_status(own, tls=False)
        plugin = status["plugin"]
        watches = f"from the sidecar at {url}, which watches {status['vllm_url']}"
        return bool(plugin["problem"]) or plugin["state"] in BAD, f"{plugin['text']} ({watches})"
    except Unreachable:
        return None
    except (ScrapeError, LookupError, TypeError) as error:
        problem = "it is not from a specdec-sidecar of this version"
        if isinstance(error, ScrapeError):
            problem = str(error)
        return False, f"unknown: cannot read the status at {url} ({problem})"


async def _listen(state: State, settings: Settings) -> tuple[bool, str]:
    """The same from the socket, which is there only as long as this listens.

    Listens for two seconds, or until a plug-in is bad or all engines have said hello.
    """
    path = settings.plugin.socket
    if not path.parent.is_dir():
        return False, _NO_FOLDER.format(path.parent)

    if has_listener(path):
        return False, _TAKEN.format(path)

    was_there = path.exists()
    # ``check`` itself prints what it finds.
    silent = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
    receiver = PluginReceiver(path, state.plugin.receive, silent)
    try:
        async with receiver:
            return await _heard(state, receiver)
    finally:
        if not was_there and not receiver.problem:
            path.unlink(missing_ok=True)


async def _heard(state: State, receiver: PluginReceiver) -> tuple[bool, str]:
    for _ in range(round(_LISTEN / _PAUSE)):
        plugin = state.plugin.report(receiver.problem)
        failed = bool(receiver.problem) or plugin.state in BAD
        if failed or (plugin.heard and len(plugin.engines) >= plugin.expected):
            return failed, plugin_sentence(plugin)
        await asyncio.sleep(_PAUSE)

    listened = "" if plugin.heard else f" (listened for {_LISTEN:.0f} s)"
    return False, f"{plugin_sentence(plugin)}{listened}"


def _page(report: Report, settings: Settings) -> Iterator[str]:
    error = report.scrape.last_error
    if error is not None:
        yield f"no usable metrics ({error.reason}): {error}"
        yield _remedy(error, settings.vllm_url)
        return

    if report.scrape.malformed_lines:
        yield f"skipped {report.scrape.malformed_lines} malformed lines or histograms"

    if not report.models:
        yield "no engine yet: vLLM's Rust frontend has counted nothing, so send it a request"

    engines = chain.from_iterable(model.engines for model in report.models)
    for engine in engines:
        yield f"model {engine.key.model_name}, engine {engine.key.engine}"
        yield f"  speculative decoding: {_speculation(engine)}"
        if engine.kv_cache_capacity_tokens is not None:
            yield f"  KV cache: {engine.kv_cache_capacity_tokens:,} tokens"
        others = settings.measured.others(engine.key.model_name)
        if others:
            yield (
                f"  baseline: of other models ({', '.join(others)}), "
                "so this model has no speedup and no prices"
            )
        for limitation in sorted(engine.limitations):
            yield f"  limitation ({limitation}): {LIMITATIONS[limitation]}"


def _remedy(error: ScrapeError, url: str) -> str:
    if isinstance(error.__cause__, ssl.SSLError) and not isinstance(error, TlsRefused):
        return TLS_HINT
    if error.reason == "status" and "/v1/" in f"{url}/":
        return "vLLM's /metrics is not under /v1: end the URL before /v1."
    return error.remedy


def _speculation(engine: EngineReport) -> str:
    drafted = engine.counters.get(Counter.DRAFT_TOKENS)
    if drafted is None:
        if Limitation.NOTHING_DRAFTED in engine.limitations:
            return "not known: vLLM's Rust frontend has counted no draft"
        if Limitation.V0_COUNTERS in engine.limitations:
            return "on, but this engine's counters are wrong (V0)"
        return "off: vLLM exports no counters of drafts"

    if not drafted:
        return "on, nothing drafted yet"

    accepted = engine.counters.get(Counter.ACCEPTED_TOKENS, 0.0)
    positions = f"on, {len(engine.accepted_per_position)} draft positions"
    if Limitation.CONTRADICTORY_COUNTERS in engine.limitations:
        return f"{positions}, but this engine's counters are wrong"
    return f"{positions}; {accepted / drafted:.1%} of {drafted:,.0f} draft tokens accepted so far"


async def _check_alertmanager(url: str, settings: Settings) -> int:
    print(f"\nAlertmanager: {redacted(url)}")
    async with alert_session(settings.alerting) as session:
        outcome, reason = await post_alerts(session, url)
    if outcome == "accepted":
        print("  accepts alerts")
        return 0

    remedy = _REMEDIES[outcome]
    if reason.startswith(_ASKS_WHO):
        remedy = _WHO
    print(f"  {outcome} ({reason}): {remedy}")
    return 1
