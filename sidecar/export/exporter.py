"""The sidecar's ``/metrics`` page in the requested format, with vLLM's own series where they are re-exported."""

import gzip
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sidecar.analysis.distributions import Distribution
from sidecar.engine.names import PREFIXES
from sidecar.export.declaration import Shown
from sidecar.export.metrics import METRICS

_EXEMPLAR: Final = re.compile(r" # \{.*")  # the text format has none
_FAMILY: Final = re.compile(r"^(?=# HELP )", re.MULTILINE)
_OF_VLLM: Final = tuple(f"# HELP {prefix}" for prefix in PREFIXES)
_MOST_READ: Final = 4  # lines, times the limit: families that are too large or invalid take time, too


def own_series(page: bytes, limit: int) -> list[Family]:
    """The families of vLLM itself on its page, without exemplars.

    ``limit`` bounds the number of series. A family is exported completely or not at all: not if it is invalid, or not
    declared by a HELP line and a TYPE line.
    """
    exported: dict[str, Family] = {}
    series = lines = 0
    for text in _FAMILY.split(_EXEMPLAR.sub("", page.decode("utf-8", "replace"))):
        if not text.startswith(_OF_VLLM):
            continue
        lines += text.count("\n")
        if lines > _MOST_READ * limit:
            break
        family = _family(text)
        if family is not None and family.name not in exported and series + len(family.samples) <= limit:
            series += len(family.samples)
            exported[family.name] = family
    return list(exported.values())


def _family(text: str) -> Family | None:
    """The family that the text consists of; None if it does not, or if it is not one of vLLM's."""
    try:
        [family] = text_string_to_metric_families(text)
    except ValueError:
        return None
    series = {(sample.name, *sorted(sample.labels.items())) for sample in family.samples}
    is_valid = 0 < len(family.samples) == len(series) and family.type != "unknown"
    return family if is_valid and family.name.startswith(PREFIXES) else None


_GZIP_LEVEL = 1  # half the uncompressed size at a fifth of the default level's time


class Families(Collector):
    """Passes ready-made families to prometheus_client's encoders."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Family]:
        """The families."""
        return iter(self._families)


def families(shown: Shown) -> Iterator[Family]:
    """Every metric that has a sample."""
    for metric in METRICS:
        family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
        for labels, value in metric.samples(shown):
            _add(family, metric.name, dict(zip(metric.labels, labels, strict=True)), value)
        if family.samples:
            yield family


def _add(family: Family, name: str, labels: dict[str, str], value: float | Distribution) -> None:
    if not isinstance(value, Distribution):
        family.add_sample(name, labels, value)
        return
    for edge, count in zip((*value.edges, math.inf), value.counts, strict=True):
        le = floatToGoString(edge)  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
        family.add_sample(f"{name}_bucket", labels | {"le": le}, count)
    family.add_sample(f"{name}_count", labels, value.count)
    family.add_sample(f"{name}_sum", labels, value.sum)


@dataclass(frozen=True, slots=True)
class Format:
    """What a client accepts; there are only a few different ones."""

    content_type: str
    gzip: bool
    encode: Callable[[Collector], bytes] = field(compare=False)

    @property
    def headers(self) -> dict[str, str]:
        """The response headers for a page in this format."""
        headers = {"Content-Type": self.content_type, "Vary": "Accept, Accept-Encoding"}
        return headers | {"Content-Encoding": "gzip"} if self.gzip else headers


def chosen(accept: str, accept_encoding: str) -> Format:
    """The format for a request's ``Accept`` and ``Accept-Encoding``."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        encode, content_type = choose_encoder("")
    return Format(content_type, gzip_accepted(accept_encoding), encode)


def rendered(shown: Shown, form: Format, own: Iterable[Family] = ()) -> bytes:
    """The page, including the metrics of the sidecar's own process, with ``own`` at the end."""
    process = ProcessCollector(registry=None).collect()
    body = form.encode(Families([*families(shown), *process, *own]))
    return gzip.compress(body, _GZIP_LEVEL) if form.gzip else body
