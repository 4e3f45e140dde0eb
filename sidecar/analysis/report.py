"""Everything known and judged at one poll, as one immutable tree.

All that the sidecar shows or sends comes from it.

Report → models → engines, temperatures, groups. Times are Unix seconds or seconds, ratios from 0 to
1. Unknown values are None or missing, never 0. Totals fall only when their engine, vLLM or the
sidecar restarts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.analysis.advice import Advice
from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.change import Change
from sidecar.analysis.checklist.checklist import Checklist
from sidecar.analysis.distributions import Distribution
from sidecar.analysis.endings import EndingsReport
from sidecar.analysis.engine.cache import CacheWindow, mean_capacity
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.engine.health import HealthReport
from sidecar.analysis.engine.latency import Latency
from sidecar.analysis.engine.probes import ProbeReport
from sidecar.analysis.engine.scrape_report import ScrapeReport
from sidecar.analysis.evidence import NO_DRAFTS, Acceptance
from sidecar.analysis.finer import Part
from sidecar.analysis.judgement import Judgement
from sidecar.analysis.overlong import Overlong
from sidecar.analysis.pod_alert import PodAlert
from sidecar.analysis.speed.estimate import Estimate
from sidecar.analysis.speed.speedup import EngineSpeed, Held, LoadReport, Speedup
from sidecar.analysis.split.plugin_state import NoSplit, PluginReport
from sidecar.analysis.split.strata import Difference
from sidecar.analysis.split.tallies import GroupReport
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.findings.finding import Finding
from sidecar.requests.keys import Ending
from sidecar.requests.messages import Configuration, Speculation
from sidecar.requests.tally import Tally
from sidecar.settings.baselines import PlainCache, PlainLatency, PlainStepTimes

# of single requests over the sliding window; None without requests
Quantiles = Mapping[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """One engine.

    Every field after ``judgement`` is a current value: empty or None unless the last poll is fresh.
    The exceptions are ``speculation``, ``configuration``, ``said`` and ``vllm``, which hold until
    vLLM restarts.
    """

    key: EngineKey
    counters: Mapping[Counter, float]  # vLLM's; they start again at 0 when it restarts
    accepted_per_position: tuple[float, ...]
    # one observation per poll; without any, vLLM does not export its usage
    kv_cache_usages: Distribution
    window_acceptances: Distribution  # one observation per poll with drafts
    # by vLLM's own counters or the plug-in's; empty if neither times steps
    loads: tuple[LoadReport, ...]
    judgement: Judgement  # unknown if it does not speculate; see Judge.held for how long it stays
    gauges: Mapping[Gauge, float]
    kv_cache_peak: float | None
    kv_cache_capacity_tokens: int | None
    kv_cache_block_tokens: int  # 0 if unknown
    cache: CacheWindow
    latencies: Mapping[Phase, Latency]  # over latency_window
    # over latency_window, by vLLM's counters; None if nothing was drafted
    acceptance: Acceptance | None
    limitations: frozenset[Limitation]
    speed: EngineSpeed | None  # None if it does not speculate
    # of the plug-in that counts
    speculation: Speculation | None
    configuration: Configuration
    # of its acceptance from that of the other engines' requests that are otherwise alike
    difference: Difference | None
    # generated over latency_window while nothing was drafted; 0 if anything was
    undrafted_tokens: float
    # the plug-in's draft tokens / vLLM's, both since the engine started; generated tokens where
    # nothing was drafted; 0 if not usable
    coverage: float | None
    # what a decoding request holds in the KV cache, on average
    context_tokens: float | None = None
    report_age: float | None = None  # of the plug-in's newest whole report, in seconds
    # as a plug-in says it, also if nothing has confirmed it yet: to be shown, not to judge by
    said: Speculation | None = None
    vllm: str | None = None  # its version, where a confirmed plug-in says it


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureReport:
    """One model's requests at one temperature, as vLLM's scheduler counted them.

    ``tally`` is the sum over the engines' lives in the current process of vLLM; distributions are
    since this sidecar's start. ``window`` is over latency_window, from live totals, so it includes
    tokens of running requests; its ``share`` is of the model's draft tokens. Quantiles are of
    finished requests. Both are empty unless the last poll is fresh.
    """

    temperature: str
    tally: Tally
    acceptances: Distribution
    lengths: Distribution
    ttft: Distribution
    tpot: Distribution
    durations: Distribution
    window: Acceptance
    # at 0.1, 0.5 and 0.9, of requests with at least ``MOST_NOISE`` draft tokens
    acceptance_quantiles: Quantiles
    # finished requests of the window by acceptance, in ten equal bins from 0 to 1
    acceptance_bins: tuple[int, ...]
    ttft_quantiles: Quantiles  # at 0.5, 0.95 and 0.99
    tpot_quantiles: Quantiles  # the same
    judgement: Judgement
    speedup: Speedup | None
    # request-seconds saved against plain decoding; None without a baseline
    saved_seconds: float | None
    lost_seconds: float | None  # likewise, but lost
    held: Held | None = None  # what stands in for ``speedup`` while it is withheld
    # single temperatures within it; empty unless it has most of the draft tokens and they differ
    parts: tuple[Part, ...] = ()
    # finished requests by how their output ends, since this sidecar's start; None: not known
    endings: Mapping[Ending, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """One model: all its engines together.

    Temperatures (coldest first) and groups are empty while there is no split. ``speed`` is None if
    the model does not speculate or the last poll is not fresh; its ``withheld`` says why there is
    no speedup. ``acceptance_p10`` is of single requests with at least ``MOST_NOISE`` draft
    tokens, over latency_window or over an hour's latest min_requests.
    """

    model_name: str
    engines: tuple[EngineReport, ...]
    temperatures: tuple[TemperatureReport, ...]
    groups: tuple[GroupReport, ...]
    judgement: Judgement
    speed: EngineSpeed | None
    # all speculating engines together; every load at which anything is known
    loads: tuple[LoadReport, ...]
    acceptance_p10: float | None = None
    no_split: NoSplit | None  # why there are no temperatures; None if there are
    advice: Advice | None  # on the number of draft tokens; None below the gates
    # over latency_window, of what this product's own commands sent: it is in no temperature
    own: Acceptance = NO_DRAFTS
    # of the acceptance rate that breaks even, by the models' sizes; None if a speedup is known, or
    # no plug-in tells how vLLM drafts
    estimate: Estimate | None = None
    overlong: Overlong | None = None  # requests of the window that the draft was too short for
    # over the last hour, by the mean context of the requests that decoded (``CONTEXT_LABELS``)
    contexts: Mapping[str, Speedup] = field(default_factory=dict)
    plain_cache: PlainCache | None = None  # this and the next two are the baseline's
    plain_steps: PlainStepTimes | None = None
    plain_latencies: Mapping[str, PlainLatency] = field(default_factory=dict)  # by phase
    # None if it speculates, or if that is not known now
    checklist: Checklist | None = None
    endings: EndingsReport | None = None  # of the window's finished requests
    change: Change | None = None  # of how it speculates, within a day
    # Of the finished requests of the last quarter of an hour, by temperature and how their tokens
    # are chosen; how much those at each temperature differ; and what structured ones of the window
    # decoded without any draft, in tokens. Findings follow from these, and nothing shows them.
    sampling: Mapping[tuple[str, str], Sums] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    structured_undrafted: int = 0
    findings: tuple[Finding, ...] = ()  # why speculation loses, what to change first first

    @property
    def kv_cache_capacity_tokens(self) -> int | None:
        """Of one engine, on average; None if no engine says."""
        return mean_capacity(engine.kv_cache_capacity_tokens for engine in self.engines)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnReport:
    """What the sidecar counts about itself."""

    failures: Mapping[str, int] = field(default_factory=dict)  # by part of the program
    # of settings and certificates, by outcome
    reloads: Mapping[str, int] = field(default_factory=dict)
    # A line for each problem. Settings that were invalid at the start have their defaults; those of
    # a reload are not in force.
    invalid_settings: tuple[str, ...] = ()
    http_refusals: Mapping[str, int] = field(default_factory=dict)  # by reason
    # by Alertmanager and outcome
    alerts_sent: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # values that became "other", by label
    label_overflow: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole tree at ``at``.

    ``models`` are those on vLLM's page, kept for a while after they leave it. ``alerts`` are
    the conditions of alerts that held at the last good poll.
    """

    at: float
    scrape: ScrapeReport
    plugin: PluginReport
    models: tuple[ModelReport, ...]
    own: OwnReport
    health: HealthReport = field(default_factory=HealthReport)
    probe: ProbeReport = field(default_factory=ProbeReport)
    alerts: tuple[PodAlert, ...] = ()

    def model(self, name: str) -> ModelReport | None:
        """The model of that name; None if it has none."""
        return next((model for model in self.models if model.model_name == name), None)
