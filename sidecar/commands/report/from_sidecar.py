"""A report from a running sidecar: its status, and from its metrics what the status lacks."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from sidecar.analysis.quantile import histogram_quantile
from sidecar.commands.report.report import Engine, ModelTable, Report, Row, Times
from sidecar.engine.fetch import Fetcher, FetchOptions
from sidecar.engine.lines import LineReader, PageLimits, Series, Wanted
from sidecar.engine.snapshot import HistogramReading
from sidecar.errors import NotAnExposition
from sidecar.export.page.answer import answer
from sidecar.export.request_notes import unattributed
from sidecar.log import redacted

_TTFT: Final = "specdec_request_time_to_first_token_seconds_bucket"
_TPOT: Final = "specdec_request_time_per_output_token_seconds_bucket"
_DRAFTED: Final = "specdec_draft_tokens_total"
_WANTED: Final = Wanted(("specdec_",), frozenset({_TTFT, _TPOT, _DRAFTED}))
_NO_SOURCE: Final = (
    "No request source: acceptance is not split by temperature. Set requests.source to proxy, middleware or traces."
)

_Samples = Mapping[Series, float]


async def sidecar_report(url: str, options: FetchOptions) -> Report:
    """Asks the sidecar at ``url``.

    Raises:
        ScrapeError: no answer, or none that a sidecar gives.
    """
    fetcher = Fetcher(url, options)
    try:
        status, page = await asyncio.gather(fetcher.get("/api/v1/status"), fetcher.get("/metrics"))
    finally:
        await fetcher.close()
    lines = LineReader(_WANTED, PageLimits()).read(page)
    try:
        found = msgspec.json.decode(status)
        return _report(redacted(url), found, dict(zip(lines.series, lines.values, strict=True)))
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotAnExposition("the status is not one of a specdec-sidecar of this version") from error


def _report(url: str, status: dict[str, Any], samples: _Samples) -> Report:
    targets = status["targets"]
    return Report(
        origin=f"specdec-sidecar {status['version']} at {url}",
        period="the last minutes (latency_window); attribution, TTFT and TPOT by temperature since the sidecar's start",
        models=tuple(table for target in targets for table in _tables(target, samples)),
        engines=tuple(_engine(target, engine) for target in targets for engine in target["engines"]),
        thresholds={
            name.removeprefix("acceptance_"): status["thresholds"][name]
            for name in ("acceptance_net_negative", "acceptance_break_even")
        },
        notes=tuple(dict.fromkeys(_notes(targets))),
    )


def _tables(target: Mapping[str, Any], samples: _Samples) -> Iterator[ModelTable]:
    requests = target["requests"]
    said = answer(target).text if target["up"] else None
    for model in requests["models"] if requests else ():
        buckets = {label: bucket for label, bucket in model["temperatures"].items() if bucket["requests"]}
        total = sum(bucket["draft_tokens"] for bucket in buckets.values())
        name = model["model_name"]
        rows = tuple(_row(name, label, bucket, total, samples) for label, bucket in buckets.items())
        yield ModelTable(name, model["coverage"], model["residual"], rows, said)


def _row(model: str, label: str, bucket: Mapping[str, Any], total: float, samples: _Samples) -> Row:
    return Row(
        temperature=label,
        verdict=bucket["verdict"],
        advice=bucket["advice"],
        requests=bucket["requests"],
        draft_tokens=bucket["draft_tokens"],
        share=bucket["draft_tokens"] / total if total else None,
        acceptance=bucket["acceptance"],
        p10=bucket["p10"],
        p50=bucket["p50"],
        p90=bucket["p90"],
        attribution=_attribution(model, label, samples),
        ttft=_times(_TTFT, model, label, samples),
        tpot=_times(_TPOT, model, label, samples),
        speedup=bucket["speed"]["speedup"],
    )


def _of(name: str, model: str, temperature: str, samples: _Samples) -> Iterator[tuple[dict[str, str], float]]:
    for series, value in samples.items():
        labels = dict(series.labels)
        if series.name == name and (labels.get("model_name"), labels.get("temperature")) == (model, temperature):
            yield labels, value


def _attribution(model: str, temperature: str, samples: _Samples) -> str | None:
    kinds = {labels["attribution"] for labels, value in _of(_DRAFTED, model, temperature, samples) if value > 0}
    return ", ".join(sorted(kinds)) or None


def _times(name: str, model: str, temperature: str, samples: _Samples) -> Times:
    """Quantiles as Prometheus computes them; None beyond the last edge, and its edge in the first bucket."""
    counts: defaultdict[float, float] = defaultdict(float)
    for labels, value in _of(name, model, temperature, samples):
        counts[float(labels["le"])] += value
    if len(counts) < 2:
        return Times()
    edges = sorted(counts)
    reading = HistogramReading(tuple(edges), tuple(counts[edge] for edge in edges))
    return _from_first_edge(edges[0], *(_inside(share, reading) for share in (0.5, 0.99)))


def _inside(share: float, reading: HistogramReading) -> float | None:
    return histogram_quantile(share, reading) if share * reading.count <= reading.counts[-2] else None


def _from_first_edge(edge: float, p50: float | None, p99: float | None) -> Times:
    """Below the first bucket's edge a quantile is a point on a line: a guess."""
    (p50, p50_below), (p99, p99_below) = (
        (None, edge) if value is not None and value < edge else (value, None) for value in (p50, p99)
    )
    return Times(p50, p99, p50_below, p99_below)


def _engine(target: Mapping[str, Any], engine: Mapping[str, Any]) -> Engine:
    acceptance = engine["acceptance"]
    return Engine(
        f"{target['name']}: {engine['model_name']}, engine {engine['engine']}",
        acceptance["rate"] if acceptance else None,
        _phase(engine, "ttft"),
        _phase(engine, "tpot"),
    )


def _phase(engine: Mapping[str, Any], phase: str) -> Times:
    latency = engine["latency"].get(phase)
    if latency is None:
        return Times()
    return _from_first_edge(latency["resolution"], latency["quantiles"]["0.5"], latency["quantiles"]["0.99"])


def _request_notes(name: str, requests: Mapping[str, Any], *, several: bool) -> Iterator[str]:
    ended = requests["ended"]
    if not requests["attributed"]:
        why = unattributed(ended) if ended else "no request has ended within the window, or none is attributed yet"
        yield f"{name}: {why}."
    yield from (f"{name}: {note}" if several else note for note in requests["notes"])


def _notes(targets: list[Mapping[str, Any]]) -> Iterator[str]:
    for target in targets:
        if not target["up"]:
            error = target["last_error"]
            yield f"{target['name']} cannot be scraped" + (f" ({error['reason']})." if error else ".")
        requests = target["requests"]
        if requests is None:
            yield _NO_SOURCE
        else:
            yield from _request_notes(target["name"], requests, several=len(targets) > 1)
        for engine in target["engines"]:
            yield from (f"{limitation['name']}: {limitation['explanation']}" for limitation in engine["limitations"])
