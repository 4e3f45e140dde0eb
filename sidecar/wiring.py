"""From the settings to the options of each part.

Optional parts are imported only if the settings ask for them, to save their memory.
"""

import contextlib
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sidecar.analysis.attribution.attributors import DROP_REASONS
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.request_state import RequestState
from sidecar.analysis.speed_state import SpeedOptions
from sidecar.analysis.target_state import TargetState
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.analysis.verdict import VerdictThresholds
from sidecar.engine.fetch import Fetcher, FetchOptions
from sidecar.engine.lines import PageLimits
from sidecar.engine.pacing import Pacing, PacingOptions
from sidecar.engine.page_source import PageSource
from sidecar.engine.scrape import Poller, ScrapeSink
from sidecar.export.collector import ExportOptions
from sidecar.export.web import PROBES
from sidecar.http.access import Access
from sidecar.http.guard import GuardOptions
from sidecar.log import Log
from sidecar.requests.source import NoSource, RequestSource
from sidecar.settings import Settings
from sidecar.settings.addresses import Address

if TYPE_CHECKING:
    from sidecar.alerting.conditions import PushThresholds
    from sidecar.alerting.push import PushOptions


def fetch(settings: Settings) -> FetchOptions:
    """How vLLM's page is fetched."""
    return FetchOptions(timeout=settings.scrape_timeout, page_bytes=settings.limits.page_bytes, tls=tls(settings))


def page_limits(settings: Settings) -> PageLimits:
    """How large vLLM's page may be."""
    limits = settings.limits
    return PageLimits(
        page_bytes=limits.page_bytes, line_bytes=limits.line_bytes, labels=limits.labels, series=limits.series
    )


@contextlib.asynccontextmanager
async def page_source(url: str, settings: Settings) -> AsyncIterator[PageSource]:
    """The pages of the vLLM at ``url``; the connection is closed at the end of the block."""
    fetcher = Fetcher(url, fetch(settings))
    filtered = settings.scrape_filtered and not settings.reexport  # re-exporting needs the whole page
    try:
        yield PageSource(fetcher, page_limits(settings), filtered=filtered)
    finally:
        await fetcher.close()


def poller(source: PageSource, settings: Settings, sink: ScrapeSink) -> Poller:
    """Polls ``source`` as often as the settings say."""
    options = PacingOptions(
        interval=settings.scrape_interval,
        max_interval=settings.scrape_max_interval,
        backoff_max=settings.scrape_backoff_max,
        cpu_share=settings.scrape_cpu_share,
    )
    return Poller(source, Pacing(options, random.random), sink, time.time, time.monotonic)


def own_page(settings: Settings) -> GuardOptions:
    """The guard's options for our own page."""
    return GuardOptions(
        allowed_hosts=frozenset(settings.allowed_hosts),
        linger_seconds=0,  # it accepts no bodies
        open_paths=PROBES,  # kubelets send no password
    )


def page_access(settings: Settings, log: Log) -> Access | None:
    """TLS and basic auth of our own page."""
    return None if settings.web_config_file is None else Access(settings.web_config_file, log)


def source_access(settings: Settings, log: Log) -> Access | None:
    """The same for the request source's port."""
    files = {"proxy": settings.proxy.web_config_file, "traces": settings.traces.web_config_file}
    path = files.get(settings.requests.source)
    return None if path is None else Access(path, log)


def export(settings: Settings) -> ExportOptions:
    """What the settings contribute to ``/metrics``."""
    return ExportOptions(
        thresholds={name: float(value) for name, value in settings.thresholds.model_dump().items()},
        baselines=settings.baselines,
        plain_steps_at={
            model: steps.measured.timestamp() for model, steps in settings.plain_steps.items() if steps.measured
        },
        max_positions=settings.limits.positions,
        per_target=bool(settings.targets),
        runbooks=settings.alerting.runbooks or "",
        dashboards=settings.alerting.dashboards or "",
    )


def buckets(settings: Settings) -> TemperatureBuckets:
    """The temperature buckets."""
    return TemperatureBuckets(settings.temperature_buckets, settings.default_temperature)


def request_state(settings: Settings, source: RequestSource) -> RequestState:
    """The empty state of the requests."""
    # Traces arrive in batches: vLLM's exporter sends every 5 s, and a Collector may hold spans for another 5 s.
    lateness = 15.0 if settings.requests.source == "traces" else 0.0
    return RequestState(
        settings.requests.source,
        buckets=buckets(settings),
        options=AttributionOptions(lateness=lateness, history=settings.history),
        window=settings.latency_window,
        drop_reasons=source.drop_reasons | DROP_REASONS,
        max_models=settings.limits.models,
    )


def target_state(name: str, settings: Settings, requests: RequestState) -> TargetState:
    """The empty state of one vLLM; without a request source it has no requests."""
    return TargetState(
        name,
        Lookback(latency=settings.latency_window, kv_peak=settings.kv_peak_window, history=settings.history),
        interval=settings.scrape_interval,
        max_engines=settings.limits.engines,
        max_positions=settings.limits.positions,
        thresholds=verdicts(settings),
        speed=speed(settings),
        requests=None if settings.requests.source == "none" else requests,
    )


def plain_curves(settings: Settings) -> dict[str, PlainCurve]:
    """The measured plain step times, by model."""
    return {
        model: PlainCurve(
            running=steps.running,
            seconds=steps.seconds,
            deviations=steps.deviations or tuple((error,) for error in steps.errors),
            prompt_share=steps.prompt_share,
            prompt_seconds=steps.prompt_seconds,
        )
        for model, steps in settings.plain_steps.items()
    }


def speed(settings: Settings) -> SpeedOptions:
    """How speedup is measured."""
    return SpeedOptions(
        curves=plain_curves(settings),
        temperatures=buckets(settings).labels,
        window=settings.latency_window,
        stretch=settings.latency_window / 60,  # a speedup's error comes from the differences between these parts
        history=settings.history,
    )


def verdicts(settings: Settings) -> VerdictThresholds:
    """The thresholds of the verdicts."""
    thresholds = settings.thresholds
    return VerdictThresholds(
        net_negative=thresholds.acceptance_net_negative,
        break_even=thresholds.acceptance_break_even,
        fewer_tokens=thresholds.acceptance_fewer_tokens,
        more_tokens=thresholds.acceptance_more_tokens,
        slower=thresholds.speedup_net_negative,
        faster=thresholds.speedup_net_positive,
        min_requests=thresholds.min_requests,
        min_drafts_per_second=thresholds.min_drafts_per_second,
        min_share=thresholds.min_bucket_share,
        coverage=thresholds.coverage,
        window=settings.latency_window,
    )


def push_thresholds(settings: Settings) -> "PushThresholds":
    """The thresholds of pushed alerts."""
    from sidecar.alerting.conditions import PushThresholds  # noqa: PLC0415 - optional part

    return PushThresholds(
        verdicts=verdicts(settings),
        acceptance_p10=settings.thresholds.acceptance_p10,
        latency_gap_growth=settings.thresholds.latency_gap_growth,
        kv_cache_usage=settings.thresholds.kv_cache_usage,
        baselines=settings.baselines,
    )


def push(settings: Settings, access: Access | None) -> "PushOptions":
    """Which alerts are pushed, and where to; ``access`` is our own page's."""
    from sidecar.alerting.push import PushOptions  # noqa: PLC0415 - optional part
    from sidecar.alerting.rules import load_rules  # noqa: PLC0415 - optional part

    alerting = settings.alerting
    scheme = "https" if access is not None and access.has_tls else "http"
    return PushOptions(
        alertmanagers=alerting.alertmanagers,
        labels={**alerting.labels, "instance": alerting.instance or socket.gethostname()},
        runbooks=alerting.runbooks or f"{scheme}://{_reachable(settings.listen)}/runbooks",
        dashboards=alerting.dashboards,
        rules=load_rules(),
        limits=push_thresholds(settings),
        interval=alerting.interval,
        resend=alerting.resend,
        timeout=alerting.timeout,
        pace=alerting.pace,
        per_target=bool(settings.targets),
    )


def _reachable(listen: Address) -> Address:
    """The address at which others reach a listening address: the host's own if it is the wildcard address."""
    if listen.local == listen:
        return listen
    with contextlib.suppress(OSError):  # in a Pod the host's name resolves to the Pod's address
        return Address(socket.gethostbyname(socket.gethostname()), listen.port)
    return Address(socket.gethostname(), listen.port)


def request_source(settings: Settings, access: Access | None) -> RequestSource:
    """The request source that ``requests.source`` names; ``access`` is what ``source_access`` returns."""
    match settings.requests.source:
        case "middleware":
            from sidecar.requests.middleware.source import MiddlewareSource  # noqa: PLC0415 - optional part

            return MiddlewareSource(socket=settings.middleware.socket, uid=settings.middleware.uid)
        case "proxy":
            return _proxy_source(settings, access)
        case "traces":
            from sidecar.requests.traces.otlp_receiver import TracesOptions  # noqa: PLC0415 - optional part
            from sidecar.requests.traces.source import TracesSource  # noqa: PLC0415 - optional part

            traces = settings.traces
            options = TracesOptions(body_bytes=traces.body_bytes, max_inflight=traces.max_inflight)
            return TracesSource(listen=traces.listen, options=options, access=access)
        case _:
            return NoSource()


def _proxy_source(settings: Settings, access: Access | None) -> RequestSource:
    from sidecar.requests.observe.usage import AskUsage  # noqa: PLC0415 - optional part
    from sidecar.requests.proxy.options import ProxyOptions, Upstream  # noqa: PLC0415 - optional part
    from sidecar.requests.proxy.source import ProxySource  # noqa: PLC0415 - optional part

    url, proxy = urlsplit(settings.vllms[0].vllm_url), settings.proxy
    secure = url.scheme == "https"
    return ProxySource(
        listen=proxy.listen,
        upstream=Upstream(
            url.hostname or "", url.port or (443 if secure else 80), _tls_context(settings) if secure else None
        ),
        options=ProxyOptions(
            max_connections=proxy.max_connections,
            max_header_bytes=proxy.max_header_bytes,
            max_body_bytes=proxy.max_body_bytes,
            send_idle_seconds=proxy.send_timeout,
            header_seconds=proxy.header_timeout,
            connect_seconds=proxy.connect_timeout,
        ),
        observe_bytes=proxy.observe_bytes,
        ask_usage=AskUsage(settings.requests.ask_usage),
        drain_seconds=proxy.drain_timeout,
        access=access,
    )


def tls(settings: Settings) -> ssl.SSLContext | bool:
    """How aiohttp verifies vLLM's certificate: True against the system's CAs, False not at all."""
    return _tls_context(settings) if settings.vllm_ca_file is not None else settings.vllm_tls_verify


def _tls_context(settings: Settings) -> ssl.SSLContext:
    if settings.vllm_tls_verify:
        return ssl.create_default_context(cafile=settings.vllm_ca_file)
    return ssl._create_unverified_context()  # noqa: S323, SLF001 - asked for by vllm_tls_verify
