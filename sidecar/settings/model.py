"""All settings, and the rules between them."""

from collections.abc import Callable, Iterator
from operator import attrgetter

from sidecar.settings import groups
from sidecar.settings.addresses import Address, ListenAddress
from sidecar.settings.baselines import Measured, MeasuredFile, PlainStepTimes
from sidecar.settings.field_types import Edges
from sidecar.settings.web_config import WebConfigFile


class Settings(Measured, groups.Windows, groups.Scrape):
    """All settings. Times are in seconds, sizes in bytes, shares from 0 to 1."""

    baseline_file: MeasuredFile | None = None
    """YAML file with `baseline`, `plain_steps` or both, as `specdec-sidecar baseline` writes it"""
    listen: ListenAddress = Address("0.0.0.0", 9911)  # noqa: S104 - Prometheus scrapes from another Pod
    """where `/metrics` and the status page are served"""
    web_config_file: WebConfigFile | None = None
    """TLS and basic auth for `listen`, in the format of Prometheus' exporter-toolkit; see docs/security.md"""
    temperature_buckets: Edges = (0.0, 0.3, 0.5, 0.7, 1.0)
    """upper edges, inclusive, of the temperature buckets; hotter requests get one more bucket"""
    reexport: bool = False
    """export vLLM's own series unchanged"""

    plugin: groups.Plugin = groups.Plugin()
    thresholds: groups.Thresholds = groups.Thresholds()
    alerting: groups.Alerting = groups.Alerting()
    limits: groups.Limits = groups.Limits()
    log: groups.Log = groups.Log()

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


def conflicts(settings: Settings, name: Callable[[str], str]) -> Iterator[tuple[set[str], str]]:
    """What contradicts itself in settings of which each is valid: the names without their keys, and the message.

    ``name`` gives a setting's name in the message.
    """
    for lower, higher in (
        ("scrape_interval", "latency_window"),
        ("latency_window", "history"),
        ("thresholds.acceptance_net_negative", "thresholds.acceptance_break_even"),
        ("thresholds.speedup_net_negative", "thresholds.speedup_net_positive"),
        ("thresholds.acceptance_fewer_tokens", "thresholds.acceptance_more_tokens"),
    ):
        low, high = attrgetter(lower)(settings), attrgetter(higher)(settings)
        if low > high:
            names = {key.partition(".")[0] for key in (lower, higher)}
            yield names, f"{name(lower)}={low:g}, {name(higher)}={high:g}: the first must not be above the second"
    for measured in ("baseline", "plain_steps"):
        if settings.baseline_file is not None and getattr(settings, measured):
            both = f"{name('baseline_file')}, {name(measured)}"
            yield {"baseline_file", measured}, f"{both}: mutually exclusive; keep one of them"
