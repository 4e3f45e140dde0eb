"""Our ``/metrics`` page in the requested format."""

import asyncio
import gzip
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sidecar.errors import SpecDecError
from sidecar.export.client import FamilyCollector, process_families
from sidecar.export.families import Family
from sidecar.export.reexport import own_series
from sidecar.export.text import TextRenderer

_MOST_FILTERED = 16  # pages with selected metrics, before the state is read again
_GZIP_LEVEL = 1  # half the uncompressed size at a fifth of the default level's time


@dataclass(frozen=True, slots=True)
class Rendered:
    """A response's body and the headers that describe it."""

    body: bytes
    headers: dict[str, str]


class TooManyRenders(SpecDecError):
    """More different sets of metrics were requested at the same time than are worth rendering."""

    def __init__(self) -> None:
        super().__init__("too many different name[]; ask again later, or for the whole page")


class Exporter:
    """Renders the state, at most once in ``every`` seconds for each form. ``read`` has no side effects."""

    def __init__(
        self,
        read: Callable[[], tuple[Iterable[Family], Mapping[str, bytes]]],
        passthrough_series: int = 0,
        every: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``read`` returns all families, and the page of each vLLM that is up, by target, if these are re-exported.

        ``passthrough_series`` bounds vLLM's own series.
        """
        self._read = read
        self._passthrough_series = passthrough_series
        self._every = every
        self._clock = clock
        self._text = TextRenderer()
        self._process = ProcessCollector(registry=None)
        self._turn = asyncio.Lock()  # requests that arrive while a page is being rendered get that page
        self._taken_at = -math.inf
        self._families: list[Family] = []
        self._own = b""  # vLLM's own series
        self._rendered: dict[tuple[str, bool, frozenset[str]], Rendered] = {}

    async def render(self, accept: str, accept_encoding: str, names: frozenset[str] = frozenset()) -> Rendered:
        """The page for a request's ``Accept``, ``Accept-Encoding`` and ``name[]`` (empty: all metrics).

        If it ends with vLLM's own series, it is in the text format whatever was requested: prometheus_client 0.26 turns
        the colons of vLLM's names into underscores in its other formats.

        Raises:
            TooManyRenders: there have been ``_MOST_FILTERED`` other sets of ``names`` within ``every`` seconds.
        """
        async with self._turn:
            if self._clock() - self._taken_at >= self._every:
                await self._take()
            own = b"" if names else self._own
            encode, content_type = _chosen("" if own else accept)
            key = (content_type, _accepts_gzip(accept_encoding), names)
            if key not in self._rendered:
                if names and sum(bool(filtered) for _, _, filtered in self._rendered) >= _MOST_FILTERED:
                    raise TooManyRenders
                self._rendered[key] = self._render(*key, encode, own)
            return self._rendered[key]

    async def _take(self) -> None:
        self._taken_at = self._clock()
        self._rendered.clear()
        families, vllm_pages = self._read()
        self._families = [*families, *process_families(self._process)]
        self._own = b""
        if vllm_pages:
            self._own = await asyncio.to_thread(own_series, vllm_pages, self._passthrough_series)

    def _render(
        self,
        content_type: str,
        packed: bool,  # noqa: FBT001 - unpacked from a key
        names: frozenset[str],
        encode: Callable[[Collector], bytes],
        own: bytes,
    ) -> Rendered:
        families = [family for family in self._families if _is_asked_for(family, names)] if names else self._families
        if content_type.startswith("text/plain"):
            body = self._text.render(families) + own
        else:
            body = encode(FamilyCollector(families))
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if packed:
            return Rendered(gzip.compress(body, _GZIP_LEVEL), headers | {"Content-Encoding": "gzip"})
        return Rendered(body, headers)


def _chosen(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is not a number
        return choose_encoder("")


def _is_asked_for(family: Family, names: frozenset[str]) -> bool:
    """Whether ``names`` has the metric's name or, for a histogram, one of its samples' names."""
    name = family.metric.name
    return name in names or any(name + suffix in names for suffix in ("_bucket", "_count", "_sum"))


def _accepts_gzip(accept_encoding: str) -> bool:
    for accepted in accept_encoding.lower().split(","):
        coding, _, parameters = accepted.partition(";")
        if coding.strip() == "gzip":
            return parameters.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False
