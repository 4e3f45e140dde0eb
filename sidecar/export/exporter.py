"""Our ``/metrics`` page in the format that was asked for."""

import gzip
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sidecar.export.client import FamilyCollector, process_families
from sidecar.export.families import Family
from sidecar.export.text import TextRenderer

_GZIP_LEVEL = 1  # half the bytes of none at a fifth of the time of the default


@dataclass(frozen=True, slots=True)
class Rendered:
    """A response's body and the headers that describe it."""

    body: bytes
    headers: dict[str, str]


class Exporter:
    """Renders the state of the moment. ``families`` is quick and has no side effects."""

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families
        self._text = TextRenderer()
        self._process = ProcessCollector(registry=None)

    def render(
        self, accept: str, accept_encoding: str, names: frozenset[str] = frozenset(), *, own: bytes = b""
    ) -> Rendered:
        """The page for a request's ``Accept``, ``Accept-Encoding`` and ``name[]`` (none: all metrics).

        ``own`` are vLLM's own series to end the page with, see ``reexport``. They are in the text format, and then so
        is the page: prometheus_client 0.26 writes the colons of vLLM's names as underscores in its other formats.
        """
        encode, content_type = _chosen("" if own else accept)
        families = [*self._families(), *process_families(self._process)]
        if names:
            families = [family for family in families if _asked(family, names)]
        if content_type.startswith("text/plain"):
            body = self._text.render(families) + own
        else:
            body = encode(FamilyCollector(lambda: families))
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if _takes_gzip(accept_encoding):
            return Rendered(gzip.compress(body, _GZIP_LEVEL), headers | {"Content-Encoding": "gzip"})
        return Rendered(body, headers)


def _chosen(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        return choose_encoder("")


def _asked(family: Family, names: frozenset[str]) -> bool:
    """Whether a metric is asked for by its own name or, a histogram, by one of its samples'."""
    name = family.metric.name
    return name in names or any(name + suffix in names for suffix in ("_bucket", "_count", "_sum"))


def _takes_gzip(accept_encoding: str) -> bool:
    for accepted in accept_encoding.lower().split(","):
        coding, _, parameters = accepted.partition(";")
        if coding.strip() == "gzip":
            return parameters.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False
