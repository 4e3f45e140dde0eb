"""The sidecar's ``/metrics`` page in the requested format.

Where vLLM's own series are re-exported, it has them, too.
"""

import gzip
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sidecar.analysis.distributions import Distribution
from sidecar.engine.exposition import Series, read_sample
from sidecar.engine.names import PREFIXES
from sidecar.export.declaration import Shown
from sidecar.export.metrics import METRICS

_NAME: Final = rf"((?:{'|'.join(PREFIXES)})[a-zA-Z0-9_:]+)"
_FAMILY: Final = re.compile(
    rf"# HELP {_NAME} .*\n# TYPE \1 (?:counter|gauge|histogram|summary|untyped)\n"
)
_BETWEEN: Final = re.compile(r"\n(?=# (?!TYPE ))")  # families, and other comments
_SAMPLE: Final = re.compile(r"[a-zA-Z0-9_:]+(?:\{.*\})? [^ ]+")  # no time: vLLM writes none
_SUFFIXES: Final = ("", "_bucket", "_sum", "_count", "_total", "_created")
_EXEMPLAR: Final = re.compile(r" # \{.*")  # the text format has none
_MOST_READ: Final = 4  # times the limit: families that are too large or invalid take time, too


def own_series(page: bytes, limit: int) -> bytes:
    """The families of vLLM itself on its page, unchanged except that exemplars are removed.

    ``limit`` bounds the number of series. A family is exported completely or not at all: not if one
    of its lines is that of another, or would make Prometheus refuse the whole page.
    """
    exported: dict[str, str] = {}
    series = read = 0
    text = page.decode("utf-8", "replace")
    for family in _BETWEEN.split(text[: text.rfind("\n")]):
        head = _FAMILY.match(family)
        if head is None:
            continue
        count = family.count("\n", head.end()) + 1
        read += count + 1
        if read > _MOST_READ * limit:
            break
        if head[1] in exported or series + count > limit:
            continue
        lines = [
            _EXEMPLAR.sub("", line)
            for line in family[head.end() :].split("\n")
            if not line.startswith("#")
        ]
        if lines and _are_samples(lines, head[1]):
            series += count
            exported[head[1]] = head[0] + "\n".join([*lines, ""])
    return "".join(exported.values()).encode()


def _are_samples(lines: Sequence[str], family: str) -> bool:
    """Whether each line is a sample of the family, and of another series than the others."""
    samples = [read_sample(line.encode()) if _SAMPLE.fullmatch(line) else None for line in lines]
    series = {sample[0] for sample in samples if sample is not None}
    return len(series) == len(lines) and all(_belongs(one, family) for one in series)


def _belongs(series: Series, family: str) -> bool:
    labels = [name for name, _ in series.labels]
    return (
        series.name in {family + suffix for suffix in _SUFFIXES}
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
        # prometheus_client leaves it untyped.
        le = floatToGoString(edge)  # type: ignore[no-untyped-call]
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
