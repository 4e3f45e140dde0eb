"""What a sidecar's traffic has that a comparison of outputs did not look at."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from sidecar.engine.fetch import Fetcher
from sidecar.errors import InputError, ScrapeError
from sidecar.log import redacted

_METRIC: Final = "specdec_group_requests_total"
_FEWEST: Final = 0.01  # share of the requests that is worth a second comparison
_LOOKED_AT: Final = 0.9  # of a group's longest prompt: no two prompts have quite the same length
# The longest prompt of each group of the sidecar but the first, in tokens; of the last one its
# shortest.
_LENGTHS: Final[Mapping[str, int]] = {
    "512-2k": 2048,
    "2k-8k": 8192,
    "8k-32k": 32_768,
    "32k+": 32_768,
}
_FILTERS: Final = ("top_p", "top_k", "min_p")
_PENALTIES: Final = ("presence_penalty", "frequency_penalty", "repetition_penalty")
_STRUCTURES: Final = (
    *("structured_outputs", "response_format", "guided_json", "guided_regex", "guided_grammar"),
)

Shares = Mapping[tuple[str, str], float]
"""Of all requests, by table and group."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Requests of a group: what they have, and what to add to look at them."""

    by: str
    group: str
    have: str
    fields: Sequence[str]
    example: str


_KINDS: Final = (
    _Kind("sampling", "filtered", "top-p, top-k or min-p", _FILTERS, '{"top_p": 0.9}'),
    _Kind("sampling", "penalties", "penalties", _PENALTIES, '{"presence_penalty": 0.5}'),
    _Kind(
        "output",
        "structured",
        "structured output",
        _STRUCTURES,
        '{"structured_outputs": {"regex": "[a-z ]+"}}',
    ),
)


async def traffic_shares(url: str) -> Shares:
    """How much of a sidecar's traffic is in each group, since its vLLM started.

    Raises:
        InputError: no sidecar answers there, or it has no requests by group.
    """
    fetcher = Fetcher(url, tls=True)
    try:
        return _shares((await fetcher.get("/metrics")).decode())
    except (ScrapeError, ValueError) as error:
        raise InputError(f"--sidecar: {redacted(url)}: {error}") from None
    finally:
        await fetcher.close()


def _shares(page: str) -> Shares:
    counts: dict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == _METRIC:
                counts[sample.labels["by"], sample.labels["group"]] += sample.value

    totals: dict[str, float] = defaultdict(float)
    for (by, _), count in counts.items():
        totals[by] += count
    if not any(totals.values()):
        raise ValueError("no requests by group; does its vLLM have the plug-in?")
    return {key: count / totals[key[0]] for key, count in counts.items() if totals[key[0]]}


def not_looked_at(
    shares: Shares | None, longest: int | None, extra_body: Mapping[str, Any]
) -> Iterator[str]:
    """What to look at next, each with the arguments; without ``shares``, whatever may be there.

    ``longest`` is the longest context that was compared, in tokens.
    """
    if shares is None:
        above = "" if longest is None else f" above {longest:,} tokens"
        yield f"contexts{above} (--context)"
        for kind in _KINDS:
            if not extra_body.keys() & set(kind.fields):
                yield f"{kind.have} (--extra-body '{kind.example}')"
        return

    for group, tokens in _LENGTHS.items():
        share = shares.get(("prompt_tokens", group), 0.0)
        if share >= _FEWEST and (longest is None or longest < _LOOKED_AT * tokens):
            yield f"prompts of {group} tokens, {share:.0%} of the traffic (--context {tokens})"
    for kind in _KINDS:
        share = shares.get((kind.by, kind.group), 0.0)
        if share >= _FEWEST and not extra_body.keys() & set(kind.fields):
            yield f"{kind.have}, {share:.0%} of the traffic (--extra-body '{kind.example}')"
