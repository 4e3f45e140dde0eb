"""From the settings to each part's options: the only place that knows both."""

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.analysis.verdict import VerdictThresholds
from sidecar.engine.fetch import FetchOptions
from sidecar.engine.lines import PageLimits
from sidecar.engine.pacing import PacingOptions
from sidecar.export.collector import ExportOptions
from sidecar.settings import Settings
from sidecar.settings.addresses import Address

if TYPE_CHECKING:
    from sidecar.alerting.push import PushOptions


def fetch(settings: Settings) -> FetchOptions:
    """How vLLM's page is fetched."""
    return FetchOptions(settings.scrape_timeout, settings.limits.page_bytes, tls(settings))


def page_limits(settings: Settings) -> PageLimits:
    """What a page may weigh."""
    limits = settings.limits
    return PageLimits(limits.page_bytes, limits.line_bytes, limits.labels, limits.series)


def pacing(settings: Settings) -> PacingOptions:
    """How often to poll."""
    return PacingOptions(
        settings.scrape_interval,
        settings.scrape_max_interval,
        settings.scrape_backoff_max,
        settings.scrape_cpu_share,
    )


def filtered(settings: Settings) -> bool:
    """Whether to ask vLLM for only what is used; re-exporting needs the whole page."""
    return settings.scrape_filtered and not settings.reexport


def reexported(settings: Settings) -> int:
    """How many of vLLM's own series to pass on."""
    return settings.limits.passthrough_series if settings.reexport else 0


def lookback(settings: Settings) -> Lookback:
    """How far back to look."""
    return Lookback(settings.latency_window, settings.kv_peak_window, settings.history)


def export(settings: Settings) -> ExportOptions:
    """What the settings put on the page."""
    return ExportOptions(
        thresholds={name: float(value) for name, value in settings.thresholds.model_dump().items()},
        baselines=settings.baselines,
        max_positions=settings.limits.positions,
        per_target=bool(settings.targets),
        runbooks=settings.alerting.runbooks or "",
        dashboards=settings.alerting.dashboards or "",
    )


def buckets(settings: Settings) -> TemperatureBuckets:
    """The temperature buckets."""
    return TemperatureBuckets(settings.temperature_buckets, settings.default_temperature)


def attribution(settings: Settings) -> AttributionOptions:
    """How requests are attributed. Traces arrive in batches, some seconds after their requests' ends."""
    lateness = _TRACES_LATENESS if settings.requests.source == "traces" else 0.0
    return AttributionOptions(lateness=lateness, history=settings.history)


def verdicts(settings: Settings) -> VerdictThresholds:
    """Where verdicts draw the line."""
    thresholds = settings.thresholds
    return VerdictThresholds(
        net_negative=thresholds.acceptance_net_negative,
        break_even=thresholds.acceptance_break_even,
        fewer_tokens=thresholds.acceptance_fewer_tokens,
        more_tokens=thresholds.acceptance_more_tokens,
        min_requests=thresholds.min_requests,
        min_drafts_per_second=thresholds.min_drafts_per_second,
        min_share=thresholds.min_bucket_share,
        coverage=thresholds.coverage,
        window=settings.latency_window,
    )


def push(settings: Settings) -> "PushOptions":
    """What alerts are pushed by, and where to."""
    from sidecar.alerting.conditions import Limits  # noqa: PLC0415 - off by default, and then not paid for in memory
    from sidecar.alerting.push import PushOptions  # noqa: PLC0415 - the same
    from sidecar.alerting.rules import load_rules  # noqa: PLC0415 - the same

    alerting, thresholds = settings.alerting, settings.thresholds
    return PushOptions(
        alertmanagers=alerting.alertmanagers,
        instance=alerting.instance or socket.gethostname(),
        runbooks=alerting.runbooks or f"http://{_reachable(settings.listen)}/runbooks",
        dashboards=alerting.dashboards,
        rules=load_rules(),
        limits=Limits(
            latency_gap_growth=thresholds.latency_gap_growth,
            kv_cache_usage=thresholds.kv_cache_usage,
            min_requests=thresholds.min_requests,
            baselines=settings.baselines,
        ),
        interval=alerting.interval,
        resend=alerting.resend,
        timeout=alerting.timeout,
        pace=alerting.pace,
        per_target=bool(settings.targets),
    )


def _reachable(listen: Address) -> Address:
    """Where others reach an address that is listened at: the host's own if it stands for all addresses."""
    if listen.local == listen:
        return listen
    with contextlib.suppress(OSError):  # in a Pod the host's name resolves to the Pod's address
        return Address(socket.gethostbyname(socket.gethostname()), listen.port)
    return Address(socket.gethostname(), listen.port)


_TRACES_LATENESS = 15.0  # seconds: vLLM's exporter sends every 5 s, a Collector may hold spans as long again


def tls(settings: Settings) -> ssl.SSLContext | bool:
    """True: the system's certificates; False: any certificate."""
    if not settings.vllm_tls_verify:
        return False
    if settings.vllm_ca_file is None:
        return True
    return ssl.create_default_context(cafile=settings.vllm_ca_file)
