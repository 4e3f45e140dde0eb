"""Our ``/metrics`` page in the requested format, rendered by prometheus_client."""

import asyncio
import gzip
import math
from collections.abc import Callable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sidecar.analysis.report import Distribution
from sidecar.export.declaration import Shown
from sidecar.export.metrics import METRICS
from sidecar.export.reexport import Families, own_series

_GZIP_LEVEL = 1  # half the uncompressed size at a fifth of the default level's time


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


Rendered = tuple[bytes, dict[str, str]]  # a response's body and the headers that describe it


class Exporter:
    """Renders what ``read`` gives, once for each format; it renders again when ``read`` gives something else."""

    def __init__(self, read: Callable[[], Shown], vllm_page: Callable[[], bytes] = bytes) -> None:
        """``vllm_page`` gives vLLM's whole page if it is to be re-exported, else nothing."""
        self._read = read
        self._vllm_page = vllm_page
        self._process = ProcessCollector(registry=None)
        self._turn = asyncio.Lock()  # requests that arrive while a page is being made get that page
        self._shown: Shown | None = None
        self._families = Families([])
        self._own = b""  # vLLM's own series
        self._rendered: dict[tuple[str, bool], Rendered] = {}

    async def render(self, accept: str, accept_encoding: str) -> Rendered:
        """The page for a request's ``Accept`` and ``Accept-Encoding``.

        If it ends with vLLM's own series, it is in the text format whatever was requested: prometheus_client 0.26 turns
        the colons of vLLM's names into underscores in its other formats.
        """
        async with self._turn:
            if (shown := self._read()) is not self._shown:
                await self._renew(shown)
                self._shown = shown
            encode, content_type = _chosen("" if self._own else accept)
            key = (content_type, gzip_accepted(accept_encoding))
            if key not in self._rendered:
                self._rendered[key] = _packed(encode(self._families) + self._own, *key)
            return self._rendered[key]

    async def _renew(self, shown: Shown) -> None:
        page = self._vllm_page()
        most = shown.settings.limits.passthrough_series
        own = await asyncio.to_thread(own_series, page, most) if page else b""
        self._families = Families([*families(shown), *self._process.collect()])
        self._own = own
        self._rendered.clear()


def _packed(body: bytes, content_type: str, with_gzip: bool) -> Rendered:  # noqa: FBT001 - unpacked from a key
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if with_gzip:
        return gzip.compress(body, _GZIP_LEVEL), headers | {"Content-Encoding": "gzip"}
    return body, headers


def _chosen(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        return choose_encoder("")
