"""The settings that come in groups, one class a group, and the shapes of targets and baselines."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sidecar.settings.kinds import Choice, Duration, Integer, Number, Structure
from sidecar.settings.places import Address, BaseUrl, Listen, Name, SocketFile

Source = Literal["none", "proxy", "middleware", "traces"]
Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]

_Share = Annotated[float, Number(0, 1)]
_KIBIBYTE = 1024
_MEBIBYTE = 1024 * 1024


class Group(BaseModel):
    """What every group has in common: frozen, nothing unknown in it, its own defaults checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Target(Group):
    """One vLLM to scrape."""

    name: Annotated[str, Name(63, r"[A-Za-z0-9._-]+", "letters, digits, dots, underscores or hyphens")]
    vllm_url: Annotated[str, BaseUrl()] = Field(repr=False)  # may hold credentials


class Quantiles(Group):
    """Seconds at four quantiles; those that are given do not decrease from one to the next."""

    p50: Annotated[float, Duration(0, 3600)] | None = None
    p90: Annotated[float, Duration(0, 3600)] | None = None
    p95: Annotated[float, Duration(0, 3600)] | None = None
    p99: Annotated[float, Duration(0, 3600)] | None = None

    def given(self) -> dict[float, float]:
        """Seconds by quantile (0.5, 0.9, 0.95, 0.99), of those that are given."""
        found = {0.5: self.p50, 0.9: self.p90, 0.95: self.p95, 0.99: self.p99}
        return {quantile: seconds for quantile, seconds in found.items() if seconds is not None}

    @model_validator(mode="after")
    def _rising(self) -> Self:
        seconds = list(self.given().values())
        if seconds != sorted(seconds):
            raise ValueError("a higher quantile lies below a lower one; write p50, p90, p95, p99 in rising order")
        return self


class ModelBaseline(Group):
    """One model's latencies as they were when all was well, by phase."""

    ttft: Quantiles | None = None
    itl: Quantiles | None = None
    tpot: Quantiles | None = None
    e2e: Quantiles | None = None
    queue: Quantiles | None = None

    def phases(self) -> dict[str, Quantiles]:
        """The phases that are given, by the name they have as a label."""
        found = {"ttft": self.ttft, "itl": self.itl, "tpot": self.tpot, "e2e": self.e2e, "queue": self.queue}
        return {phase: quantiles for phase, quantiles in found.items() if quantiles is not None}


class Requests(Group):
    """Where single requests, and so their temperatures, are learned from."""

    source: Annotated[Source, Choice(("none", "proxy", "middleware", "traces"))] = Field(
        "none",
        description="`none`: vLLM's counters alone; `proxy`: the sidecar forwards the traffic; `middleware`: a class "
        "loaded into vLLM reports it; `traces`: vLLM's OTLP traces tell of it",
    )


class Limits(Group):
    """What is accepted from vLLM at most; what goes past a limit is counted."""

    page_bytes: Annotated[int, Integer(64 * _KIBIBYTE, 64 * _MEBIBYTE, "bytes")] = Field(
        8 * _MEBIBYTE, description="largest `/metrics` page that is read"
    )
    line_bytes: Annotated[int, Integer(_KIBIBYTE, 64 * _KIBIBYTE, "bytes")] = Field(
        16 * _KIBIBYTE, description="longest line of a page"
    )
    labels: Annotated[int, Integer(4, 1024)] = Field(64, description="labels of one sample")
    series: Annotated[int, Integer(100, 1_000_000)] = Field(10_000, description="samples of one page that are used")
    engines: Annotated[int, Integer(1, 64)] = Field(
        8, description="pairs of model and engine told apart per target; any more become `other`"
    )
    models: Annotated[int, Integer(1, 16)] = Field(
        1, description="models whose requests are told apart per target; any more become `other`"
    )
    positions: Annotated[int, Integer(1, 64)] = Field(16, description="draft positions told apart")
    passthrough_series: Annotated[int, Integer(1, 100_000)] = Field(
        1000, description="vLLM's own series passed on where `reexport` is on"
    )


class Thresholds(Group):
    """Where alerts, dashboards and verdicts draw the line; exported as `specdec_threshold`."""

    acceptance_net_negative: _Share = Field(
        0.5, description="acceptance rate below which speculation costs more than it gives"
    )
    acceptance_break_even: _Share = Field(
        0.65, description="acceptance rate above which speculation is a gain; between the two it about breaks even"
    )
    acceptance_p10: _Share = Field(
        0.5, description="10th percentile of requests' acceptance rates below which a part of the traffic loses"
    )
    acceptance_regression: _Share = Field(
        0.05, description="drop of the acceptance rate below its own past that is worth a look"
    )
    acceptance_fewer_tokens: _Share = Field(
        0.4, description="acceptance rate below which fewer speculative tokens are advised"
    )
    acceptance_more_tokens: _Share = Field(
        0.8, description="acceptance rate above which more speculative tokens are advised"
    )
    latency_gap_growth: Annotated[float, Number(1, 100)] = Field(
        1.5, description="P99 minus P50, divided by the baseline's, above which the tail has grown"
    )
    kv_cache_usage: _Share = Field(0.9, description="share of the KV cache in use above which it is under pressure")
    coverage: _Share = Field(
        0.8, description="share of vLLM's draft tokens attributed to requests below which the split is incomplete"
    )
    min_drafts_per_second: Annotated[float, Number(0, 1_000_000)] = Field(
        1, description="drafts per second below which acceptance is not judged"
    )
    min_requests: Annotated[int, Integer(1, 1_000_000)] = Field(
        20, description="requests in a bucket below which it is not judged"
    )
    min_bucket_share: _Share = Field(
        0.1, description="share of all draft tokens below which a temperature bucket is not judged"
    )
    slowdown: Annotated[float, Number(1, 100)] = Field(
        1.1,
        description="time per output token of the pods that speculate, divided by that of the model's other pods, "
        "above which speculation is a loss",
    )
    restarts_per_hour: Annotated[int, Integer(1, 1000)] = Field(
        3, description="restarts of vLLM within an hour from which on it counts as a crash loop"
    )
    events_dropped: _Share = Field(
        0.01, description="share of the request events that may be lost before the split by temperature is doubtful"
    )


class Log(Group):
    """What the sidecar logs, and how."""

    level: Annotated[Level, Choice(("debug", "info", "warning", "error"))] = Field(
        "info", description="least severe level that is logged"
    )
    format: Annotated[Format, Choice(("auto", "json", "console"))] = Field(
        "auto", description="`auto`: JSON lines unless the output is a terminal"
    )


class Proxy(Group):
    """The proxy in front of vLLM; in force where `requests.source` is `proxy`."""

    listen: Annotated[Address, Listen()] = Field(
        Address("0.0.0.0", 8080),  # noqa: S104 - other Pods send their requests here
        description="where clients connect",
    )
    header_timeout: Annotated[float, Duration(0.1, 300)] = Field(
        10.0, description="time a client has to send a whole request head"
    )
    observe_bytes: Annotated[int, Integer(_KIBIBYTE, 64 * _MEBIBYTE, "bytes")] = Field(
        _MEBIBYTE, description="bodies beyond this are forwarded all the same, and not looked into"
    )
    max_header_bytes: Annotated[int, Integer(_KIBIBYTE, _MEBIBYTE, "bytes")] = Field(
        64 * _KIBIBYTE, description="largest head of a request"
    )
    max_body_bytes: Annotated[int, Integer(1, 1024 * _MEBIBYTE, "bytes")] | None = Field(
        None, description="largest request body that is forwarded; not set: vLLM decides"
    )
    max_connections: Annotated[int, Integer(1, 65_536)] = Field(4096, description="clients connected at one time")
    send_timeout: Annotated[float, Duration(1, 3600)] = Field(
        60.0, description="time a client may take none of its reply before it is given up, and vLLM stops generating"
    )
    drain_timeout: Annotated[float, Duration(0, 3600)] = Field(
        30.0, description="time that requests under way have to end when the sidecar stops"
    )
    connect_timeout: Annotated[float, Duration(0.1, 300)] = Field(
        5.0, description="time allowed for a connection to vLLM"
    )


class Middleware(Group):
    """The receiver of the middleware's events; in force where `requests.source` is `middleware`."""

    socket: Annotated[Path, SocketFile()] = Field(
        Path("/run/specdec/events.sock"), description="Unix socket on a volume that both containers mount"
    )


class Traces(Group):
    """The receiver of OTLP/HTTP traces; in force where `requests.source` is `traces`."""

    listen: Annotated[Address, Listen()] = Field(
        Address("0.0.0.0", 4318),  # noqa: S104 - a Collector sends from another Pod
        description="where traces are received",
    )
    body_bytes: Annotated[int, Integer(_KIBIBYTE, 64 * _MEBIBYTE, "bytes")] = Field(
        4 * _MEBIBYTE, description="largest export that is read, compressed or not"
    )
    max_inflight: Annotated[int, Integer(1, 1024)] = Field(16, description="exports read at one time")


class Alerting(Group):
    """Alerts sent straight to Alertmanager, for sites without Prometheus; where there is one, leave it to the rules."""

    alertmanagers: Annotated[
        tuple[Annotated[str, BaseUrl()], ...], Field(max_length=8), Structure("a list of URLs")
    ] = Field(
        (),
        repr=False,  # may hold credentials
        description="addresses of every replica of Alertmanager, at most 8, never of a load balancer in front of them; "
        "empty: nothing is sent",
    )
    interval: Annotated[float, Duration(0.1, 300)] = Field(15.0, description="time between two looks at the state")
    resend: Annotated[float, Duration(0.1, 3600)] = Field(
        60.0, description="time after which a firing alert is sent again; it ends by itself after four times that"
    )
    timeout: Annotated[float, Duration(0.1, 60)] = Field(5.0, description="time allowed for one delivery")
    instance: (
        Annotated[str, Name(253, r"[A-Za-z0-9._:-]+", "letters, digits, dots, colons, underscores or hyphens")] | None
    ) = Field(None, description="label `instance` of the alerts; not set: the host's name, which is the Pod's")
    runbooks: Annotated[str, BaseUrl()] = Field(
        "https://specdec-sidecar.example/alerts/runbooks", description="where `alerts/runbooks` is served"
    )
    pace: Annotated[float, Number(0, 100)] = Field(
        1.0, description="factor for how long conditions have to hold; 0: alerts are sent at once"
    )
