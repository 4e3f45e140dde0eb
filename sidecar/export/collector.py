"""From the state to samples: families built anew for every page, nothing kept, nothing mutated."""

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from sidecar import __version__
from sidecar.analysis.target_state import TargetReport
from sidecar.errors import ScrapeError
from sidecar.export import metrics
from sidecar.export.engine_families import add_engine
from sidecar.export.families import Families, Family
from sidecar.export.push_families import add_push
from sidecar.export.relay_families import add_relay
from sidecar.export.request_families import add_judgement, add_requests

if TYPE_CHECKING:  # what it imports would cost memory where there is no proxy
    from sidecar.requests.proxy.stats import RelayStats

Baselines = Mapping[str, Mapping[str, Mapping[float, float]]]  # seconds by model, phase and quantile


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the settings put on the page: ``thresholds`` by name; ``per_target`` adds the label ``target``."""

    thresholds: Mapping[str, float] = field(default_factory=dict)
    baselines: Baselines = field(default_factory=dict)
    max_positions: int = 16
    per_target: bool = False


def export_families(
    reports: Iterable[TargetReport],
    failures: Mapping[str, int],
    options: ExportOptions,
    *,
    relay: "RelayStats | None" = None,
    alerts_sent: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> list[Family]:
    """Every sample of the page, but for those of the process.

    ``failures`` are counts by part of the program, ``relay`` the proxy's own counts where there is a proxy,
    ``alerts_sent`` those of the direct push by replica and outcome.
    """
    general = Families()
    general.add(metrics.BUILD_INFO, 1, __version__, platform.python_version())
    for part, count in failures.items():
        general.add(metrics.INTERNAL_ERRORS, count, part)
    for name, value in options.thresholds.items():
        general.add(metrics.THRESHOLD, value, name)
    for model, phases in options.baselines.items():
        for phase, quantiles in phases.items():
            for quantile, seconds in quantiles.items():
                general.add(metrics.LATENCY_BASELINE, seconds, model, phase, str(quantile))
    if relay is not None:
        add_relay(general, relay)
    add_push(general, alerts_sent)
    families = Families(("target",) if options.per_target else ())
    for report in reports:
        families.scope = (report.name,) if options.per_target else ()
        _add_target(families, report, options)
    return [*general.all(), *families.all()]


def _add_target(families: Families, report: TargetReport, options: ExportOptions) -> None:
    families.add(metrics.UP, report.up)
    families.add(metrics.LAST_SCRAPE, report.last_scrape)
    families.add(metrics.SCRAPE_DURATION, report.duration if report.up else None)
    families.add(metrics.SCRAPE_INTERVAL, report.interval)
    for reason in _scrape_reasons():
        families.add(metrics.SCRAPE_ERRORS, report.errors.get(reason, 0), reason)
    families.add(metrics.MALFORMED_LINES, report.malformed_lines)
    families.add(metrics.VLLM_RESTARTS, report.restarts)
    if report.up:
        families.add(metrics.VLLM_INFO, 1, report.version)
    for engine in report.engines:
        add_engine(families, engine, report.limitations.get(engine.key, frozenset()), options.max_positions)
    if report.requests is not None:
        add_requests(families, report.requests, fresh=report.up, max_positions=options.max_positions)
    for judged in report.judgements:
        add_judgement(families, judged)
    families.add(metrics.LABEL_OVERFLOW, report.overflowed_engines, "engine")
    families.add(metrics.LABEL_OVERFLOW, report.overflowed_positions, "position")


def _scrape_reasons() -> list[str]:
    """All reasons that a poll can fail for, so that each is exported from 0 on."""
    found = {ScrapeError.reason}
    waiting = [ScrapeError]
    while waiting:
        for error in waiting.pop().__subclasses__():
            found.add(error.reason)
            waiting.append(error)
    return sorted(found - {"scrape", "page"})
