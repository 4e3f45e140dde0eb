"""The settings as the program gets them: every value in its range, and no two of them at odds."""

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from sidecar.settings.fields import Fields
from sidecar.settings.groups import Target
from sidecar.settings.places import Address

IMPOSSIBLE = "impossible"  # pydantic's error type for broken rules; its context holds them as ``broken``


class Broken(NamedTuple):
    """A rule between settings that is broken: which settings, and "what is wrong; what to write"."""

    paths: tuple[tuple[str, ...], ...]
    fault: str


class Settings(Fields):
    """All settings, sound by themselves and together; ``load_settings`` makes one from a file and the environment."""

    @property
    def vllms(self) -> tuple[Target, ...]:
        """What to scrape: ``targets``, or the one at ``vllm_url`` under the name ``vllm``."""
        return self.targets or (Target(name="vllm", vllm_url=self.vllm_url),)

    @property
    def baselines(self) -> dict[str, dict[str, dict[float, float]]]:
        """The baseline in seconds, by model, phase and quantile."""
        return {
            model: {phase: quantiles.given() for phase, quantiles in baseline.phases().items()}
            for model, baseline in self.baseline.items()
        }

    @property
    def listeners(self) -> dict[str, Address]:
        """The addresses listened at, by the dotted key that sets each."""
        source = {"proxy": self.proxy.listen, "traces": self.traces.listen}.get(self.requests.source)
        return {"listen": self.listen} | ({f"{self.requests.source}.listen": source} if source else {})

    @model_validator(mode="after")
    def _possible(self) -> Self:
        broken = [found for rule in _RULES for found in rule(self)]
        if broken:
            raise PydanticCustomError(
                IMPOSSIBLE, "{text}", {"text": "\n".join(one.fault for one in broken), "broken": broken}
            )
        return self


def _broken(fault: str, *keys: str) -> Broken:
    return Broken(tuple(tuple(key.split(".")) for key in keys), fault)


def _targets(settings: Settings) -> Iterator[Broken]:
    names = [target.name for target in settings.targets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        yield _broken(f"two targets have the name {twice}; give each one of its own", "targets")
    if names and "vllm_url" in settings.model_fields_set:
        yield _broken("each excludes the other; keep one of them", "vllm_url", "targets")
    if len(names) > 1 and settings.requests.source != "none":
        yield _broken(
            "requests can be observed for one vLLM alone; run a sidecar for each, or set requests.source to none",
            "requests.source",
            "targets",
        )


def _tls(settings: Settings) -> Iterator[Broken]:
    if settings.vllm_ca_file is not None and not settings.vllm_tls_verify:
        yield _broken(
            "there is nothing to check the certificates for; keep one of them", "vllm_ca_file", "vllm_tls_verify"
        )


def _times(settings: Settings) -> Iterator[Broken]:
    if settings.scrape_interval > settings.scrape_max_interval:
        yield _broken(
            "the interval is longer than its maximum; raise the second", "scrape_interval", "scrape_max_interval"
        )
    if settings.scrape_interval > settings.latency_window:
        yield _broken("no two polls fall into the window; widen the second", "scrape_interval", "latency_window")
    if settings.history < settings.latency_window:
        yield _broken("the history is shorter than the window; raise the first", "history", "latency_window")


def _thresholds(settings: Settings) -> Iterator[Broken]:
    marks = settings.thresholds
    if marks.acceptance_net_negative > marks.acceptance_break_even:
        yield _broken(
            "the first must not lie above the second; lower it",
            "thresholds.acceptance_net_negative",
            "thresholds.acceptance_break_even",
        )
    if marks.acceptance_fewer_tokens >= marks.acceptance_more_tokens:
        yield _broken(
            "the first must lie below the second; lower it",
            "thresholds.acceptance_fewer_tokens",
            "thresholds.acceptance_more_tokens",
        )


def _addresses(settings: Settings) -> Iterator[Broken]:
    listeners = settings.listeners
    if len(listeners) == 2:
        first, second = listeners.values()
        if first.port == second.port != 0 and _overlap(first.host, second.host):
            yield _broken("both listen at one port; give one of them another", *listeners)
    for key, address in listeners.items():
        if any(_reaches(target.vllm_url, address) for target in settings.vllms):
            yield _broken(
                "vLLM's address is the sidecar's own; give one of them another port",
                "targets" if settings.targets else "vllm_url",
                key,
            )


def _overlap(host: str, other: str) -> bool:
    return host == other or _ip(host).is_unspecified or _ip(other).is_unspecified


def _reaches(url: str, address: Address) -> bool:
    """Whether a connection to ``url`` would end up at ``address``, as far as the two texts tell."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    listening = _ip(address.host)
    local = _ip(host).is_loopback and (listening.is_unspecified or listening.is_loopback)
    return port == address.port and (local or host == address.host)


def _ip(host: str) -> IPv4Address | IPv6Address:
    """The address that ``host`` is; one that is neither loopback nor unspecified where it is a name."""
    try:
        return ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return IPv4Address("255.255.255.255")


_RULES: tuple[Callable[[Settings], Iterator[Broken]], ...] = (_targets, _tls, _times, _thresholds, _addresses)
