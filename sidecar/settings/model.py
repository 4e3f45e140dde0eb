"""All settings, and the rules between them."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sidecar.settings import groups
from sidecar.settings.addresses import Address, ListenAddress
from sidecar.settings.baselines import Measured, MeasuredFile, PlainStepTimes
from sidecar.settings.field_types import Edges, HostName, JsonText, json_notation
from sidecar.settings.web_config import WebConfigFile

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class Settings(BaseSettings, Measured, groups.Windows, groups.Scrape):
    """All settings. Times are in seconds, sizes in bytes, shares from 0 to 1."""

    model_config = SettingsConfigDict(
        env_prefix="SPECDEC_",
        env_nested_delimiter="__",
        enable_decoding=False,  # JsonText decodes, so that bad JSON is reported with all other errors
    )

    baseline_file: MeasuredFile | None = None
    """YAML file with `baseline`, `plain_steps` or both, as `specdec-sidecar baseline` writes it"""
    listen: ListenAddress = Address("0.0.0.0", 9911)  # noqa: S104 - Prometheus scrapes from another Pod
    """where `/metrics` and the status page are served"""
    web_config_file: WebConfigFile | None = None
    """TLS and basic auth for `listen`, in the format of Prometheus' exporter-toolkit; see docs/security.md"""
    allowed_hosts: Annotated[tuple[HostName, ...], JsonText, json_notation("list of at most 32 host names")] = Field(
        (), max_length=32
    )
    """names in the public DNS by which clients may reach `listen`; `*`: any name; IP addresses, names without a dot and
    names under `.svc`, `.local`, `.internal` and `.localhost` are always allowed"""
    temperature_buckets: Edges = (0.0, 0.3, 0.5, 0.7, 1.0)
    """upper edges, inclusive, of the temperature buckets; hotter requests get one more bucket"""
    reexport: bool = False
    """export vLLM's own series unchanged"""

    plugin: groups.Plugin = groups.Plugin()
    thresholds: groups.Thresholds = groups.Thresholds()
    alerting: groups.Alerting = groups.Alerting()
    limits: groups.Limits = groups.Limits()
    log: groups.Log = groups.Log()

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
    def baselines(self) -> dict[str, dict[str, dict[float, float]]]:
        """The baseline in seconds, by model, phase and quantile; from its file, if there is one."""
        return {
            model: {
                phase: {int(name[1:]) / 100: seconds for name, seconds in quantiles.items()}
                for phase, quantiles in phases.items()
            }
            for model, phases in (self.baseline_file or self).baseline.items()
        }

    @property
    def plain_step_times(self) -> dict[str, PlainStepTimes]:
        """How long a step takes without speculation, by model; from its file, if there is one."""
        return (self.baseline_file or self).plain_steps


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that contradict each other: their dotted keys, and the remedy."""

    keys: tuple[str, ...]
    problem: str


def conflicts(settings: Settings) -> Iterator[Conflict]:
    """What contradicts itself in settings of which each is valid."""
    for lower, higher in (
        ("scrape_interval", "scrape_max_interval"),
        ("scrape_interval", "latency_window"),
        ("latency_window", "history"),
        ("thresholds.acceptance_net_negative", "thresholds.acceptance_break_even"),
        ("thresholds.speedup_net_negative", "thresholds.speedup_net_positive"),
    ):
        if attrgetter(lower)(settings) > attrgetter(higher)(settings):
            yield Conflict((lower, higher), "the first must not be above the second")
    fewer, more = "thresholds.acceptance_fewer_tokens", "thresholds.acceptance_more_tokens"
    if attrgetter(fewer)(settings) >= attrgetter(more)(settings):
        yield Conflict((fewer, more), "the first must be below the second")
    for measured in ("baseline", "plain_steps"):
        if settings.baseline_file is not None and getattr(settings, measured):
            yield Conflict(("baseline_file", measured), "mutually exclusive; keep one of them")
    if settings.vllm_ca_file is not None and not settings.vllm_tls_verify:
        yield Conflict(("vllm_ca_file", "vllm_tls_verify"), "no certificate is verified; keep one of them")
    if _reaches(settings.vllm_url, settings.listen):
        yield Conflict(("vllm_url", "listen"), "vLLM's address is the sidecar's own; change one of the ports")


def _reaches(url: str, address: Address) -> bool:
    """Whether a connection to ``url`` would reach ``address``, as far as their texts show."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    loopback = parts.hostname in _LOOPBACK and address.local.host in _LOOPBACK
    return port == address.port and (loopback or parts.hostname == address.host)
