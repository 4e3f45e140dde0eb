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
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sidecar.analysis.distributions import Distribution
from sidecar.engine.lines import Series, read_sample
from sidecar.engine.names import PREFIXES
from sidecar.export.declaration import Shown
from sidecar.export.metrics import METRICS

_NAME: Final = rf"((?:{'|'.join(PREFIXES)})[a-zA-Z0-9_:]+)"
_HELP: Final = re.compile(rf"# HELP {_NAME} .*")
_TYPE: Final = re.compile(rf"# TYPE {_NAME} (?:counter|gauge|histogram|summary|untyped)")
_SAMPLE: Final = re.compile(r"[a-zA-Z0-9_:]+(?:\{.*\})? [^ ]+")  # no time: vLLM writes none
_SUFFIXES: Final = ("", "_bucket", "_sum", "_count", "_total", "_created")
_EXEMPLAR: Final = re.compile(r" # \{.*")  # the text format has none
_MOST_READ: Final = 4  # times the limit: families that are too large or invalid take time, too


@dataclass(slots=True)
class _Family:
    name: str
    lines: list[str]
    series: set[Series] = field(default_factory=set)
    is_valid: bool = True


def own_series(page: bytes, limit: int) -> bytes:
    """The families of vLLM itself on its page, unchanged except that exemplars are removed.

    ``limit`` bounds the number of series. A family is exported completely or not at all: not if one of its lines is
    that of another, or would make Prometheus refuse the whole page.
    """
    exported: dict[str, str] = {}
    series = read = 0
    for family in _families(page.decode("utf-8", "replace").split("\n")[:-1], limit):
        read += len(family.series) + 1
        if read > _MOST_READ * limit:
            break
        if family.is_valid and family.series and family.name not in exported and series + len(family.series) <= limit:
            series += len(family.series)
            exported[family.name] = "\n".join([*family.lines, ""])
    return "".join(exported.values()).encode()


def _families(lines: Iterable[str], most: int) -> Iterator[_Family]:
    """The families of vLLM, each of a HELP line, a TYPE line and at most ``most`` samples; no others."""
    family: _Family | None = None
    for line in lines:
        if not line.startswith("#"):
            if family is not None and family.is_valid:
                _take(line, family, most)
        elif family is not None and len(family.lines) == 1 and (kind := _TYPE.fullmatch(line)):
            family.lines.append(line)
            family.is_valid = kind[1] == family.name
        else:
            if family is not None:
                yield family
            head = _HELP.fullmatch(line)
            family = _Family(head[1], [line]) if head else None
    if family is not None:
        yield family


def _take(line: str, family: _Family, most: int) -> None:
    bare = _EXEMPLAR.sub("", line)
    sample = read_sample(bare.encode()) if _SAMPLE.fullmatch(bare) else None
    if sample is None or len(family.lines) < 2 or len(family.series) >= most or not _belongs(sample[0], family):
        family.is_valid = False
        return
    family.series.add(sample[0])
    family.lines.append(bare)


def _belongs(series: Series, family: _Family) -> bool:
    labels = [name for name, _ in series.labels]
    return (
        series.name in {family.name + suffix for suffix in _SUFFIXES}
        and series not in family.series
        and len(set(labels)) == len(labels)
        and not any(name.startswith("__") for name in labels)
    )


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


def rendered(shown: Shown, form: Format, own: bytes = b"") -> bytes:
    """The page, including the metrics of the sidecar's own process, with ``own`` at the end."""
    process = ProcessCollector(registry=None).collect()
    body = form.encode(Families([*families(shown), *process])) + own
    return gzip.compress(body, _GZIP_LEVEL) if form.gzip else body
