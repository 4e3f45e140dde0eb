"""The groups of settings, one class each, and the shapes of targets and baselines."""

from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sidecar.settings.addresses import Address, BaseUrl, ListenAddress
from sidecar.settings.field_types import (
    AskUsage,
    Bytes,
    Duration,
    Format,
    JsonText,
    Level,
    Notation,
    Share,
    SocketPath,
    Source,
    render_json,
)
from sidecar.settings.web_config import TlsConfigFile, WebConfigFile

_KIBIBYTE = 1024
_MEBIBYTE = 1024 * 1024


_Urls = Annotated[
    tuple[BaseUrl, ...], JsonText, Notation("list of at most 8 URLs (JSON in the environment)", render_json)
]


LabelName = Annotated[str, Field(max_length=63, pattern=r"^[a-zA-Z][a-zA-Z0-9_]*$")]


class Group(BaseModel):
    """Frozen, without unknown keys; a key without a value counts as not set."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in cls.model_fields}


class Target(Group):
    """One vLLM to scrape."""

    name: str = Field(max_length=63, pattern=r"^[A-Za-z0-9._-]+$")
    vllm_url: BaseUrl = Field(repr=False)  # may hold credentials


class PlainStepTimes(Group):
    """How long an engine step takes without speculation, by the number of running requests; times in seconds."""

    running: tuple[float, ...] = Field(min_length=1, max_length=16)
    """running requests, ascending"""
    seconds: tuple[float, ...] = Field(max_length=16)
    """step time at each of these loads; interpolated in between"""
    errors: tuple[float, ...] = Field(max_length=16)
    """standard errors of `seconds`"""
    deviations: tuple[Annotated[tuple[float, ...], Field(max_length=16)], ...] = Field((), max_length=16)
    """independent parts of each of `errors`, for what they have in common; if empty, they are fully correlated"""
    prompt_share: float = Field(0.0, ge=0, le=1e6)
    """prompt tokens computed per generated token during the measurement"""
    prompt_seconds: float | None = Field(None, ge=0, le=60)
    """time that each prompt token adds to a step of every other request"""
    measured: datetime | None = None
    """when it was measured"""
    vllm: str | None = Field(None, max_length=100)
    """the vLLM measured"""
    gpu: str | None = Field(None, max_length=100)
    """the hardware it ran on"""

    @model_validator(mode="after")
    def _is_a_curve(self) -> Self:
        if not len(self.running) == len(self.seconds) == len(self.errors):
            raise ValueError("running, seconds and errors differ in length")
        if self.deviations and len(self.deviations) != len(self.running):
            raise ValueError("running and deviations differ in length")
        if not all(a < b for a, b in pairwise((0.0, *self.running))):
            raise ValueError("running must rise, from above 0")
        if not all(0 < one <= 3600 for one in self.seconds) or not all(0 <= one <= 3600 for one in self.errors):
            raise ValueError("seconds must be above 0 and errors at least 0, both at most 3600")
        return self


class Requests(Group):
    """How the sidecar observes single requests and their temperatures."""

    source: Source = "none"
    """`none`: vLLM's counters only; `proxy`: the sidecar forwards the traffic; `middleware`: a class loaded into vLLM
    reports it; `traces`: vLLM's OTLP traces"""
    ask_usage: AskUsage = "false"
    """`true`: ask vLLM for the usage of streams whose clients did not ask, and remove it from their replies, so that
    every stream counts (`proxy`; for `middleware` set the variable in vLLM's environment too); `any`: also with
    vLLM versions for which it is not known whether clients see a difference"""


class Limits(Group):
    """Limits on what is accepted from vLLM; what exceeds a limit is counted."""

    page_bytes: Bytes = Field(8 * _MEBIBYTE, ge=64 * _KIBIBYTE, le=64 * _MEBIBYTE)
    """largest `/metrics` page"""
    line_bytes: Bytes = Field(16 * _KIBIBYTE, ge=_KIBIBYTE, le=64 * _KIBIBYTE)
    """longest line of a page"""
    labels: int = Field(64, ge=4, le=1024)
    """labels of one sample"""
    series: int = Field(10_000, ge=100, le=1_000_000)
    """samples used from one page"""
    engines: int = Field(8, ge=1, le=64)
    """pairs of model and engine with their own label values per target; further ones become `other`"""
    models: int = Field(1, ge=1, le=16)
    """models whose requests have their own label values per target; further ones become `other`"""
    positions: int = Field(16, ge=1, le=64)
    """draft positions with their own label values; further ones become `other`"""
    passthrough_series: int = Field(1000, ge=1, le=100_000)
    """vLLM's own series exported if `reexport` is on"""


class Thresholds(Group):
    """Thresholds of alerts, dashboards and verdicts; exported as `specdec_threshold`."""

    acceptance_net_negative: Share = 0.5
    """acceptance rate below which speculation costs more than it gives"""
    acceptance_break_even: Share = 0.65
    """acceptance rate above which speculation pays; between the two it roughly breaks even"""
    acceptance_p10: Share = 0.5
    """10th percentile of requests' acceptance rates below which a part of the traffic loses"""
    acceptance_regression: Share = 0.05
    """drop of the acceptance rate below its own past that is worth investigating"""
    acceptance_fewer_tokens: Share = 0.4
    """acceptance rate below which fewer speculative tokens are advised"""
    acceptance_more_tokens: Share = 0.8
    """acceptance rate above which more speculative tokens are advised"""
    speedup_net_negative: float = Field(0.97, ge=0.1, le=10)
    """plain time per token divided by the actual one below which speculation costs more than it gives"""
    speedup_net_positive: float = Field(1.05, ge=0.1, le=10)
    """the same, above which speculation pays; between the two it roughly breaks even"""
    latency_gap_growth: float = Field(1.5, ge=1, le=100)
    """P99 minus P50, divided by the baseline's, above which the tail has grown"""
    kv_cache_usage: Share = 0.9
    """share of the KV cache in use above which it is under pressure"""
    coverage: Share = 0.8
    """share of vLLM's draft tokens attributed to requests below which the split is incomplete"""
    min_drafts_per_second: float = Field(1.0, ge=0, le=1_000_000)
    """drafts per second below which acceptance is not judged"""
    min_requests: int = Field(20, ge=1, le=1_000_000)
    """requests in a bucket below which it is not judged"""
    min_bucket_share: Share = 0.1
    """share of all draft tokens below which a temperature bucket is not judged"""
    slowdown: float = Field(1.1, ge=1, le=100)
    """time per output token of the pods that speculate, divided by that of the model's other pods, above which
    speculation is a loss"""
    restarts_per_hour: int = Field(3, ge=1, le=1000)
    """restarts of vLLM within an hour that count as a crash loop"""
    events_dropped: Share = 0.01
    """share of lost request events above which the split by temperature is doubtful"""


class Log(Group):
    """The sidecar's own log."""

    level: Level = "info"
    """least severe level that is logged"""
    format: Format = "auto"
    """`auto`: JSON lines unless the output is a terminal"""


class Proxy(Group):
    """The proxy in front of vLLM; used if `requests.source` is `proxy`."""

    listen: ListenAddress = Address("0.0.0.0", 8080)  # noqa: S104 - other Pods send their requests here
    """where clients connect"""
    web_config_file: TlsConfigFile | None = None
    """TLS for `listen`, like the general `web_config_file` but without basic auth, whose header belongs to vLLM"""
    header_timeout: Duration = Field(10.0, ge=0.1, le=300)
    """time a client has to send a whole request head"""
    observe_bytes: Bytes = Field(_MEBIBYTE, ge=_KIBIBYTE, le=64 * _MEBIBYTE)
    """largest body that is observed; larger ones are only forwarded"""
    max_header_bytes: Bytes = Field(64 * _KIBIBYTE, ge=_KIBIBYTE, le=_MEBIBYTE)
    """largest head of a request"""
    max_body_bytes: Bytes | None = Field(None, ge=1, le=1024 * _MEBIBYTE)
    """largest request body that is forwarded; not set: vLLM decides"""
    max_connections: int = Field(4096, ge=1, le=65_536)
    """clients connected at a time"""
    send_timeout: Duration = Field(60.0, ge=1, le=3600)
    """time after which a client that does not read its reply is disconnected, so that vLLM stops generating"""
    drain_timeout: Duration = Field(30.0, ge=0, le=3600)
    """time that requests in flight have to finish when the sidecar stops"""
    connect_timeout: Duration = Field(5.0, ge=0.1, le=300)
    """time allowed for a connection to vLLM"""


class Middleware(Group):
    """The receiver of the middleware's events; used if `requests.source` is `middleware`."""

    socket: SocketPath = Path("/run/specdec/events.sock")
    """Unix socket on a volume that both containers mount"""
    uid: int | None = Field(None, ge=0, le=2**32 - 2)
    """user id of vLLM's process; events of other users' processes are refused; not set: all are accepted"""


class Traces(Group):
    """The receiver of OTLP/HTTP traces; used if `requests.source` is `traces`."""

    listen: ListenAddress = Address("0.0.0.0", 4318)  # noqa: S104 - a Collector sends from another Pod
    """where traces are received"""
    web_config_file: WebConfigFile | None = None
    """TLS and basic auth for `listen`, like the general `web_config_file`"""
    body_bytes: Bytes = Field(4 * _MEBIBYTE, ge=_KIBIBYTE, le=64 * _MEBIBYTE)
    """largest export, compressed or not"""
    max_inflight: int = Field(16, ge=1, le=1024)
    """exports processed at a time"""


class Alerting(Group):
    """Addresses that alerts link to, and alerts sent directly to Alertmanager for sites without Prometheus.

    With Prometheus, use the alert rules; they link to the same addresses, exported as `specdec_links_info`.
    """

    alertmanagers: _Urls = Field((), max_length=8, repr=False)  # may hold credentials
    """all replicas of Alertmanager, never a load balancer in front of them; empty: nothing is sent"""
    interval: Duration = Field(15.0, ge=0.1, le=300)
    """time between two evaluations"""
    resend: Duration = Field(60.0, ge=0.1, le=3600)
    """time after which a firing alert is sent again; it expires after four times that"""
    timeout: Duration = Field(5.0, ge=0.1, le=60)
    """time allowed for one delivery"""
    instance: Annotated[str, Notation("1 to 253 letters, digits, dots, colons, underscores or hyphens")] | None = Field(
        None, max_length=253, pattern=r"^[A-Za-z0-9._:-]+$"
    )
    """label `instance` of the alerts; not set: the host's name, which is the Pod's"""
    labels: Annotated[
        dict[LabelName, Annotated[str, Field(max_length=253)]],
        JsonText,
        Notation("mapping of at most 16 label names to values (JSON in the environment)", render_json),
    ] = Field({}, max_length=16)
    """more labels for these alerts: `cluster`, `namespace`, `pod`, or what your routes match; the sidecar's own win"""
    runbooks: BaseUrl | None = None
    """address of `alerts/runbooks`; not set: the sidecar itself serves them under `/runbooks`"""
    dashboards: BaseUrl | None = None
    """Grafana's address; not set: alerts do not link to dashboards"""
    pace: float = Field(1.0, ge=0, le=100)
    """factor for how long conditions must hold; 0: alerts are sent immediately"""
