"""All settings: the groups, those in no group, and the rules between settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sidecar.settings import groups
from sidecar.settings.addresses import Address, BaseUrl, ListenAddress
from sidecar.settings.field_types import (
    CertificateFile,
    Duration,
    Edges,
    File,
    HostName,
    JsonText,
    ModelName,
    Notation,
    Quantiles,
    render_json,
)
from sidecar.settings.web_config import WebConfigFile

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_EVERY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 - compared
_ORDERED = (
    ("scrape_interval", "scrape_max_interval"),
    ("scrape_interval", "latency_window"),
    ("latency_window", "history"),
    ("thresholds.acceptance_net_negative", "thresholds.acceptance_break_even"),
    ("thresholds.speedup_net_negative", "thresholds.speedup_net_positive"),
)
CONFLICT = "conflict"  # pydantic's error type for conflicting settings; its context has them as ``conflicts``


class Settings(BaseSettings, groups.Group):
    """All settings. Times are in seconds, sizes in bytes, shares from 0 to 1."""

    model_config = SettingsConfigDict(
        env_prefix="SPECDEC_",
        env_nested_delimiter="__",
        enable_decoding=False,  # JsonText decodes, so that bad JSON is reported with all other errors
        case_sensitive=True,
    )

    vllm_url: BaseUrl = Field("http://127.0.0.1:8000", repr=False)  # may hold credentials
    """vLLM's address; excludes `targets`"""
    targets: Annotated[
        tuple[groups.Target, ...],
        JsonText,
        Notation("list of at most 16 {name, vllm_url} (JSON in the environment)", render_json),
    ] = Field((), max_length=16)
    """several vLLMs to scrape, each with a unique name; excludes `vllm_url`"""
    listen: ListenAddress = Address("0.0.0.0", 9911)  # noqa: S104 - Prometheus scrapes from another Pod
    """where `/metrics` and the status page are served"""
    web_config_file: WebConfigFile | None = None
    """TLS and basic auth for `listen`, in the format of Prometheus' exporter-toolkit; see docs/security.md"""
    allowed_hosts: Annotated[
        tuple[HostName, ...], JsonText, Notation("list of at most 32 host names (JSON in the environment)", render_json)
    ] = Field((), max_length=32)
    """names in the public DNS by which clients may reach `listen`; `*`: any name; IP addresses, names without a dot and
    names under `.svc`, `.local`, `.internal` and `.localhost` are always allowed"""
    requests: groups.Requests = groups.Requests()

    scrape_interval: Duration = Field(1.0, ge=0.1, le=300)
    """time between two polls of vLLM"""
    scrape_timeout: Duration = Field(5.0, ge=0.1, le=300)
    """time allowed for one poll"""
    scrape_cpu_share: float = Field(0.01, ge=0.0001, le=1)
    """share of one core of vLLM's API process that polling may take; the interval stretches to keep it"""
    scrape_max_interval: Duration = Field(60.0, ge=0.1, le=3600)
    """the interval never stretches beyond this"""
    scrape_backoff_max: Duration = Field(10.0, ge=0.1, le=300)
    """longest wait between attempts while vLLM cannot be scraped"""
    scrape_filtered: bool = True
    """ask vLLM only for the metric families that are needed, if it supports that"""
    vllm_ca_file: CertificateFile | None = None
    """CA certificates that verify vLLM's, instead of the system's"""
    vllm_tls_verify: bool = True
    """verify vLLM's certificate"""
    limits: groups.Limits = groups.Limits()

    latency_window: Duration = Field(300.0, ge=10, le=3600)
    """sliding window of latency quantiles"""
    kv_peak_window: Duration = Field(60.0, ge=1, le=3600)
    """sliding window of the KV cache's peak"""
    history: Duration = Field(900.0, ge=10, le=7200)
    """how long counter values are kept; at least `latency_window`"""

    reexport: bool = False
    """export vLLM's own series unchanged, except for a label `target` with several targets"""
    default_temperature: float | None = Field(None, ge=0, le=100)
    """temperature of requests that specify none; not set: they get the bucket `default`"""
    temperature_buckets: Edges = (0.0, 0.3, 0.5, 0.7, 1.0)
    """upper edges, inclusive, of the temperature buckets; hotter requests get one more bucket"""
    thresholds: groups.Thresholds = groups.Thresholds()

    baseline: Annotated[
        dict[ModelName, dict[Literal["ttft", "itl", "tpot", "e2e", "queue"], Quantiles]],
        JsonText,
        Notation("mapping of at most 64 models to phase to quantile to seconds (JSON in the environment)", render_json),
    ] = Field({}, max_length=64)
    """healthy latencies: per model, the phases `ttft`, `itl`, `tpot`, `e2e` and `queue`, each with
    `p50`, `p90`, `p95` and `p99`, all optional; excludes `baseline_file`"""
    plain_steps: Annotated[
        dict[ModelName, groups.PlainStepTimes],
        JsonText,
        Notation("mapping of at most 64 models to their plain step times (JSON in the environment)", render_json),
    ] = Field({}, max_length=64)
    """how long a step takes without speculation: per model `running`, `seconds`, `errors` and the conditions of the
    measurement, as `specdec-sidecar baseline` writes them; excludes `baseline_file`"""
    baseline_file: File | None = None
    """YAML file with `baseline`, `plain_steps` or both, as `specdec-sidecar baseline` writes it"""

    log: groups.Log = groups.Log()
    proxy: groups.Proxy = groups.Proxy()
    middleware: groups.Middleware = groups.Middleware()
    traces: groups.Traces = groups.Traces()
    alerting: groups.Alerting = groups.Alerting()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Settings built in code have exactly what is passed in; only ``load_settings`` reads the environment."""
        return (init_settings,)

    @property
    def vllms(self) -> tuple[groups.Target, ...]:
        """The servers to scrape: ``targets``, or the one at ``vllm_url`` under the name ``vllm``."""
        return self.targets or (groups.Target(name="vllm", vllm_url=self.vllm_url),)

    @property
    def baselines(self) -> dict[str, dict[str, dict[float, float]]]:
        """The baseline in seconds, by model, phase and quantile."""
        return {
            model: {
                phase: {int(name[1:]) / 100: seconds for name, seconds in quantiles.items()}
                for phase, quantiles in phases.items()
            }
            for model, phases in self.baseline.items()
        }

    @property
    def listeners(self) -> dict[str, Address]:
        """The addresses listened on, by the dotted key that sets each."""
        source = {"proxy": self.proxy.listen, "traces": self.traces.listen}.get(self.requests.source)
        return {"listen": self.listen} | ({f"{self.requests.source}.listen": source} if source else {})

    @model_validator(mode="after")
    def _without_conflicts(self) -> Self:
        conflicts = [*_conflicts(self), *_address_conflicts(self)]
        if conflicts:
            text = "\n".join(conflict.problem for conflict in conflicts)
            raise PydanticCustomError(CONFLICT, "{text}", {"text": text, "conflicts": conflicts})
        return self


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that contradict each other: their dotted keys, and the remedy."""

    keys: tuple[str, ...]
    problem: str


def _conflicts(settings: Settings) -> Iterator[Conflict]:
    names = [target.name for target in settings.targets]
    several = len(names) > 1 and settings.requests.source != "none"
    unchecked = settings.vllm_ca_file is not None and not settings.vllm_tls_verify
    for conflicting, keys, problem in (
        (len(set(names)) < len(names), "targets", "two targets have the same name; make names unique"),
        (names and "vllm_url" in settings.model_fields_set, "vllm_url targets", "mutually exclusive; keep one of them"),
        (several, "requests.source targets", "requests are observed for one vLLM only; run one sidecar per vLLM"),
        (unchecked, "vllm_ca_file vllm_tls_verify", "no certificate is verified; keep one of them"),
    ):
        if conflicting:
            yield Conflict(tuple(keys.split()), problem)
    for lower, higher in _ORDERED:
        if attrgetter(lower)(settings) > attrgetter(higher)(settings):
            yield Conflict((lower, higher), "the first must not be above the second")
    fewer, more = "thresholds.acceptance_fewer_tokens", "thresholds.acceptance_more_tokens"
    if attrgetter(fewer)(settings) >= attrgetter(more)(settings):
        yield Conflict((fewer, more), "the first must be below the second")


def _address_conflicts(settings: Settings) -> Iterator[Conflict]:
    listeners = settings.listeners
    if len(listeners) == 2:
        first, second = listeners.values()
        overlap = first.host == second.host or {first.host, second.host} & _EVERY_ADDRESS
        if first.port == second.port != 0 and overlap:
            yield Conflict(tuple(listeners), "both listen on the same port; change one of them")
    for key, address in listeners.items():
        if any(_reaches(target.vllm_url, address) for target in settings.vllms):
            vllm = "targets" if settings.targets else "vllm_url"
            yield Conflict((vllm, key), "vLLM's address is the sidecar's own; change one of the ports")


def _reaches(url: str, address: Address) -> bool:
    """Whether a connection to ``url`` would reach ``address``, as far as their texts show."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    loopback = parts.hostname in _LOOPBACK and address.local.host in _LOOPBACK
    return port == address.port and (loopback or parts.hostname == address.host)
