"""All settings, in frozen groups, which the parts of the program use directly."""

import ssl
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from sidecar.settings.baselines import Measured, MeasuredFile
from sidecar.settings.field_types import (
    Address,
    BaseUrl,
    CertificateFile,
    Duration,
    Edges,
    Format,
    Group,
    HeaderName,
    HeaderValue,
    LabelName,
    Level,
    LinkUrl,
    ListenAddress,
    Share,
    SocketPath,
    json_text,
)
from sidecar.settings.web_config import WebConfigFile
from sidecar.tls import client_context, verifying

PREFIX: Final = "SPECDEC_"
CONFIG_VARIABLE: Final = f"{PREFIX}CONFIG"
"""The settings file, for commands without ``--config``."""
USER_VARIABLE: Final = f"{PREFIX}USER"
"""``NAME:PASSWORD`` for commands that ask for the sidecar's own pages."""
USER_FILE_VARIABLE: Final = f"{PREFIX}USER_FILE"
"""A file that has it, for such commands without ``--user-file``."""
SECRET: Final = frozenset({"alerting.headers", "probe.api_key"})
"""Settings whose values messages never show, not even in part."""
SERVER_VARIABLE: Final = f"{PREFIX}SERVER_ID"
"""The id of vLLM's server, which the plug-in hands down inside vLLM; not a setting."""
NOT_SETTINGS: Final = frozenset(
    {CONFIG_VARIABLE, USER_VARIABLE, USER_FILE_VARIABLE, SERVER_VARIABLE}
)
"""Variables that have the prefix of settings, but are the command line's or the plug-in's."""
MOST_MIN_REQUESTS: Final = 10_000  # so many single requests are kept for an hour

_KIBIBYTE: Final = 1024
_MEBIBYTE: Final = 1024 * 1024


class Scrape(Group):
    """How vLLM's `/metrics` is fetched; these settings are in no group."""

    vllm_url: BaseUrl = Field("http://127.0.0.1:8000", repr=False)  # may hold credentials
    """vLLM's address"""
    vllm_ca_file: CertificateFile | None = None
    """CA certificates to verify vLLM's certificate, instead of the system's"""
    vllm_tls_verify: bool = True
    """verify vLLM's certificate; always on with `vllm_ca_file`"""
    vllm_cert_file: CertificateFile | None = None
    """the sidecar's own certificate, for a vLLM that asks for one (`--ssl-cert-reqs 2`); read again
    for each connection, so it may be renewed"""
    vllm_key_file: Path | None = Field(None, json_schema_extra={"format": "path of a PEM file"})
    """its key; not set: in `vllm_cert_file`"""
    scrape_interval: Duration = Field(1.0, ge=0.1, le=300)
    """time between two polls of vLLM"""
    scrape_timeout: Duration = Field(5.0, ge=0.1, le=300)
    """time allowed for one poll"""
    scrape_cpu_share: float = Field(0.01, ge=0.0001, le=1)
    """share of one core of vLLM's API process that polling may use; the interval stretches to stay
    below it"""
    scrape_max_interval: Duration = Field(60.0, ge=0.1, le=3600)
    """the interval never stretches beyond this"""
    speculative_method: str | None = Field(None, max_length=64, pattern=r"^[a-z0-9_]+$")
    """the `method` in vLLM's `--speculative-config`, used if no plug-in reports it"""
    scrape_filtered: bool = True
    """request only the metric families that are needed, if vLLM supports it"""

    def tls(self) -> ssl.SSLContext | bool:
        """How to verify vLLM's certificate, and which certificate to present, as aiohttp takes it.

        True: verified by the system's CAs; False: not verified; neither presents a certificate.

        Raises:
            OSError: a file cannot be read, or certificate and key do not match (``ssl.SSLError``).
        """
        if self.vllm_ca_file is None and self.vllm_cert_file is None:
            return self.vllm_tls_verify

        if self.vllm_ca_file is not None:
            context = verifying(self.vllm_ca_file)
        else:
            context = client_context(tls=self.vllm_tls_verify)
        if self.vllm_cert_file is not None:
            # Without ``password``, OpenSSL would ask for that of an encrypted key on the terminal.
            context.load_cert_chain(self.vllm_cert_file, self.vllm_key_file, password="")
        return context


class Plugin(Group):
    """The plug-in that vLLM loads; it reports the drafts and accepted tokens of every request."""

    socket: SocketPath = Path("/run/specdec/plugin.sock")
    """Unix socket on which the sidecar listens for the plug-in, on a volume that both containers
    mount"""
    adapters: bool = False
    """export the names of LoRA adapters in `specdec_group_*`; they are often names of tenants"""


class Limits(Group):
    """Limits on what the sidecar accepts from vLLM; it counts what exceeds a limit."""

    page_bytes: int = Field(8 * _MEBIBYTE, ge=64 * _KIBIBYTE, le=64 * _MEBIBYTE)
    """largest `/metrics` page"""
    series: int = Field(10_000, ge=100, le=1_000_000)
    """samples used from one page"""
    engines: int = Field(8, ge=1, le=64)
    """pairs of model and engine with their own label values; further ones become `other`"""
    models: int = Field(1, ge=1, le=16)
    """models whose requests have their own label values; further ones become `other`"""
    positions: int = Field(32, ge=1, le=64)
    """draft positions with their own label values; with several engines fewer, so that a pod stays
    within its number of series: {positions} with 8 engines; further ones become `other`"""
    passthrough_series: int = Field(1000, ge=1, le=100_000)
    """vLLM's own series exported if `reexport` is on; without metrics that are malformed or have a
    label of more than 512 characters"""


class Thresholds(Group):
    """Thresholds for alerts, dashboards and verdicts; exported as `specdec_threshold`."""

    acceptance_net_negative: Share = 0.5
    """acceptance rate below which speculation costs more than it saves"""
    acceptance_low_is_critical: bool = False
    """page for every acceptance rate below `acceptance_net_negative` while no measured time shows
    whether speculation is slower, even if the rate was never higher"""
    acceptance_break_even: Share = 0.65
    """acceptance rate above which speculation pays; between the two it roughly breaks even"""
    acceptance_p10: Share = 0.5
    """10th percentile of requests' acceptance rates below which speculation slows down part of the
    traffic"""
    acceptance_regression: Share = 0.05
    """drop of the acceptance rate, compared with its own past, that is worth investigating"""
    acceptance_fewer_tokens: Share = 0.4
    """acceptance rate below which the sidecar recommends fewer speculative tokens"""
    acceptance_more_tokens: Share = 0.8
    """acceptance rate above which the sidecar recommends more speculative tokens"""
    worthwhile: Share = 0.03
    """share of the decoding time that a change must be able to save for the sidecar to advise it"""
    speedup_net_negative: float = Field(0.97, ge=0.1, le=10)
    """speedup (plain time per token divided by the actual one) below which speculation costs more
    than it saves"""
    speedup_net_positive: float = Field(1.05, ge=0.1, le=10)
    """speedup above which speculation pays; between the two it roughly breaks even"""
    latency_gap_growth: float = Field(1.5, ge=1, le=100)
    """P99 minus P50, divided by the baseline's, above which the tail has grown"""
    kv_cache_usage: Share = 0.9
    """share of the KV cache in use above which it is under pressure"""
    coverage: Share = 0.98
    """draft tokens that the plug-in reported divided by vLLM's count: below it, or above 2 minus
    it, the sidecar does not export the split by temperature"""
    min_drafts_per_second: float = Field(1.0, ge=0, le=1_000_000)
    """minimum drafts per second for a verdict"""
    min_requests: int = Field(20, ge=1, le=MOST_MIN_REQUESTS)
    """minimum requests for a verdict"""
    min_bucket_share: Share = 0.1
    """minimum share of all draft tokens for a verdict on one temperature"""
    slowdown: float = Field(1.1, ge=1, le=100)
    """time per output token of the pods that speculate, divided by that of the model's other pods,
    above which speculation does not pay"""
    restarts_per_hour: int = Field(3, ge=1, le=1000)
    """restarts of vLLM within an hour, whatever their cause, at which the alert
    SpecDecodeVLLMRestarting fires, and of the sidecar itself, at which SpecDecodeSidecarRestarting
    does; the setting restarts nothing"""
    startup_time: Duration = Field(1800.0, ge=60, le=86_400)
    """time after the sidecar's start in which vLLM should have loaded its model; the alerts wait
    for 1.5 times its last load if that is known and shorter"""
    events_dropped: Share = 0.01
    """share of finished requests lost on their way to the sidecar above which histograms by
    temperature are doubtful"""
    dead_mans_switch: bool = False
    """the alert SpecDecodeDeadMansSwitch always fires, for a service that calls someone when it
    stops"""


class EngineHealth(Group):
    """When `/-/engine` answers 503, so that a probe of vLLM's container restarts vLLM.

    See docs/restarts.md.
    """

    stalled_after: Duration = Field(120.0, ge=10, le=3600)
    """requests run and nothing moves for this long: the engine is stalled"""
    collapsed_after: Annotated[Duration, Field(ge=60, le=86400)] | None = None
    """hardly any draft token is accepted for this long; not set: a collapse alone asks for no
    restart"""
    most_restarts_per_hour: int = Field(2, ge=1, le=60)
    """restarts of an ailing vLLM within an hour after which `/-/engine` asks for no more"""


class Probe(Group):
    """A request for one token, sent to an idle vLLM, to notice an engine that hangs.

    Off unless `interval` is set. See docs/restarts.md.
    """

    interval: Annotated[Duration, Field(ge=60, le=3600)] | None = None
    """time without work or any movement, a minute to an hour, after which a request is sent; not
    set: none is sent"""
    model: str | None = Field(None, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")
    """the request's `model`; not set: the one on vLLM's `/metrics`"""
    prompt: str = Field("Hello", min_length=1, max_length=1000)
    """the request's prompt; it goes to `/v1/completions`"""
    api_key: HeaderValue | None = Field(None, min_length=1, repr=False)
    """vLLM's `--api-key`; never shown. In the environment it can come from a Secret"""


class Log(Group):
    """The sidecar's own log."""

    level: Level = "info"
    """least severe level that is logged"""
    format: Format = "auto"
    """`auto`: JSON lines unless the output is a terminal"""


class Alerting(Group):
    """Addresses that alerts link to, and alerts sent directly to Alertmanager.

    The direct alerts are for sites without Prometheus. With Prometheus, use the alert rules; they
    link to the same addresses, exported as `specdec_links_info`.
    """

    alertmanagers: Annotated[
        tuple[BaseUrl, ...], json_text('list such as ["http://alertmanager:9093"]')
    ] = Field((), max_length=8, repr=False)  # may hold credentials
    """all replicas of Alertmanager, not a load balancer in front of them; empty: nothing is sent"""
    headers: Annotated[
        dict[HeaderName, HeaderValue], json_text('mapping such as {"X-Scope-OrgID": "team"}')
    ] = Field({}, max_length=8, repr=False)  # may hold credentials
    """headers of each delivery, such as Mimir's tenant or a token; never shown"""
    interval: Duration = Field(15.0, ge=0.1, le=300)
    """time between two evaluations, each of which sends all alerts; an alert that is not sent again
    expires after 4 minutes, or after four intervals if that is longer"""
    timeout: Duration = Field(5.0, ge=0.1, le=60)
    """time allowed for one delivery"""
    instance: str | None = Field(None, max_length=253, pattern=r"^[A-Za-z0-9._:-]+$")
    """label `instance` of the alerts; not set: the host name, which is the Pod's name"""
    labels: Annotated[
        dict[LabelName, Annotated[str, Field(max_length=253)]],
        json_text('mapping such as {"team": "ml"}'),
    ] = Field({}, max_length=16)
    """more labels for these alerts: `cluster`, `namespace`, `pod`, or whatever your routes match;
    the sidecar's own labels take precedence"""
    runbooks: LinkUrl | None = None
    """base URL of the runbooks; not set: the sidecar itself serves them under `/runbooks`"""
    dashboards: LinkUrl | None = None
    """Grafana's base URL; not set: alerts do not link to dashboards"""
    pace: float = Field(1.0, ge=0, le=100)
    """factor for how long conditions must hold; 0: alerts are sent immediately"""


class Settings(Measured, Scrape):
    """All settings. Times are in seconds, sizes in bytes, shares from 0 to 1."""

    baseline_file: MeasuredFile | None = None
    """YAML file with `baseline`, `plain_steps`, `plain_cache`, `plain_endings` or several, as
    `specdec-sidecar baseline` writes it"""
    latency_window: Duration = Field(300.0, ge=10, le=3600)
    """sliding window of latency quantiles"""
    kv_peak_window: Duration = Field(60.0, ge=1, le=3600)
    """sliding window of the KV cache's peak usage"""
    history: Duration = Field(900.0, ge=10, le=7200)
    """how long counter values are kept; at least `latency_window`"""
    # Prometheus scrapes from another Pod.
    listen: ListenAddress = Address("0.0.0.0", 9911)  # noqa: S104 - see above
    """where `/metrics` and the status page are served; `0.0.0.0` and `[::]` both mean every address
    of the machine, IPv6 too if it has it"""
    web_config_file: WebConfigFile | None = None
    """TLS and basic auth for `listen`, in the format of Prometheus' exporter-toolkit; see
    docs/security.md"""
    temperature_buckets: Edges = (0.0, 0.3, 0.5, 0.7, 1.0)
    """upper edges, inclusive, of the temperature buckets; hotter requests get one more bucket"""
    reexport: bool = False
    """export vLLM's own series unchanged"""

    plugin: Plugin = Plugin()
    thresholds: Thresholds = Thresholds()
    alerting: Alerting = Alerting()
    limits: Limits = Limits()
    engine_health: EngineHealth = EngineHealth()
    probe: Probe = Probe()
    log: Log = Log()

    @property
    def scheme(self) -> str:
        """The scheme of the URLs of the sidecar's own pages: http or https."""
        web = self.web_config_file
        return "http" if web is None or web.tls is None else "https"

    @property
    def measured(self) -> Measured:
        """What was measured of healthy models: the contents of ``baseline_file`` if it is set."""
        return self.baseline_file or self


def groups() -> dict[str, type[Group]]:
    """The groups of settings, by name."""
    types = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: kind
        for name, kind in types.items()
        if isinstance(kind, type) and issubclass(kind, Group)
    }


def keys() -> list[str]:
    """The names of all settings as in messages: ``group.name``, or ``name`` if it is in no group.

    Those in no group come first.
    """
    known = groups()
    alone = [name for name in Settings.model_fields if name not in known]
    return alone + [
        f"{group}.{name}" for group, model in known.items() for name in model.model_fields
    ]


def variable(key: str) -> str:
    """The name of a setting in the environment."""
    return PREFIX + key.replace(".", "__").upper()
