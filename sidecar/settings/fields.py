"""Every setting with its range, default and description; ``model.py`` adds the rules between them."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sidecar.settings.groups import (
    Alerting,
    Limits,
    Log,
    Middleware,
    ModelBaseline,
    Proxy,
    Requests,
    Target,
    Thresholds,
    Traces,
)
from sidecar.settings.kinds import Duration, Edges, Flag, Number, Structure
from sidecar.settings.places import Address, BaseUrl, CertificateFile, File, Listen, Name

# Half a character from YAML's escapes would be a label that no page can be written with.
_MODEL_NAME = r"[^\x00-\x1f\x7f\ud800-\udfff]+"
_ModelName = Annotated[str, Name(256, _MODEL_NAME, "characters, none of them a control character")]


class Fields(BaseSettings):
    """All settings. Times are seconds, sizes bytes, shares 0 to 1."""

    model_config = SettingsConfigDict(
        env_prefix="SPECDEC_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    vllm_url: Annotated[str, BaseUrl()] = Field(
        "http://127.0.0.1:8000",
        repr=False,  # may hold credentials
        description="vLLM's address; excludes `targets`",
    )
    targets: Annotated[tuple[Target, ...], Field(max_length=16), Structure("a list of {name, vllm_url}")] = Field(
        (), description="several vLLMs to scrape, at most 16, each with a name of its own; excludes `vllm_url`"
    )
    listen: Annotated[Address, Listen()] = Field(
        Address("0.0.0.0", 9911),  # noqa: S104 - Prometheus scrapes from another Pod
        description="where `/metrics` and the status page are served",
    )
    requests: Requests = Requests()

    scrape_interval: Annotated[float, Duration(0.1, 300)] = Field(1.0, description="time between two polls of vLLM")
    scrape_timeout: Annotated[float, Duration(0.1, 300)] = Field(5.0, description="time allowed for one poll")
    scrape_cpu_share: Annotated[float, Number(0.0001, 1)] = Field(
        0.01,
        description="share of one core of vLLM's API process that polling may take; the interval stretches to keep it",
    )
    scrape_max_interval: Annotated[float, Duration(0.1, 3600)] = Field(
        60.0, description="the interval never stretches past this"
    )
    scrape_backoff_max: Annotated[float, Duration(0.1, 300)] = Field(
        10.0, description="longest wait between attempts while vLLM can't be scraped"
    )
    scrape_filtered: Annotated[bool, Flag()] = Field(
        default=True, description="ask vLLM for the families that are needed alone, where it can do that"
    )
    vllm_ca_file: Annotated[Path, CertificateFile()] | None = Field(
        None, description="CA certificates that vLLM's own is checked against, in place of the system's"
    )
    vllm_tls_verify: Annotated[bool, Flag()] = Field(default=True, description="check vLLM's certificate")
    limits: Limits = Limits()

    latency_window: Annotated[float, Duration(10, 3600)] = Field(
        300.0, description="sliding window that latency quantiles are taken over"
    )
    kv_peak_window: Annotated[float, Duration(1, 3600)] = Field(
        60.0, description="sliding window that the KV cache's peak is taken over"
    )
    history: Annotated[float, Duration(10, 7200)] = Field(
        900.0, description="how long the counters' past is kept; at least `latency_window`"
    )

    reexport: Annotated[bool, Flag()] = Field(
        default=False, description="pass vLLM's own series on as they are; of several targets, with a label `target`"
    )
    default_temperature: Annotated[float, Number(0, 100)] | None = Field(
        None,
        description="temperature of requests that give none; unset, they get the bucket `default`",
    )
    temperature_buckets: Annotated[tuple[float, ...], Edges(8)] = Field(
        (0.0, 0.3, 0.5, 0.7, 1.0),
        description="upper edges, inclusive, of the temperature buckets; hotter requests get one more bucket",
    )
    thresholds: Thresholds = Thresholds()

    baseline: Annotated[
        dict[_ModelName, ModelBaseline],
        Field(max_length=64),
        Structure("a mapping of model to phase to quantile to seconds"),
    ] = Field(
        {},
        description="latencies when all was well, of at most 64 models: per model, the phases `ttft`, `itl`, `tpot`, "
        "`e2e` and `queue`, each with `p50`, `p90`, `p95` and `p99`; whatever is not known is left out; excludes "
        "`baseline_file`",
    )
    baseline_file: Annotated[Path, File()] | None = Field(
        None, description="YAML file with such a `baseline`, as `specdec-sidecar baseline` writes it"
    )

    log: Log = Log()
    proxy: Proxy = Proxy()
    middleware: Middleware = Middleware()
    traces: Traces = Traces()
    alerting: Alerting = Alerting()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in counts: ``load_settings`` is given the environment, nothing else reads it."""
        return (init_settings,)
