"""A report from a running sidecar's ``/api/v1/status``."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from sidecar.commands.report.report import Engine, ModelTable, Report, Times, row
from sidecar.engine.fetch import Fetcher, FetchOptions
from sidecar.errors import NotAnExposition
from sidecar.export.page.answer import answer
from sidecar.export.request_notes import unattributed
from sidecar.log import redacted

_NO_SOURCE: Final = (
    "No request source: acceptance is not split by temperature. Set requests.source to proxy, middleware or traces."
)


async def sidecar_report(url: str, options: FetchOptions) -> Report:
    """Asks the sidecar at ``url``.

    Raises:
        ScrapeError: no answer, or not a sidecar's.
    """
    fetcher = Fetcher(url, options)
    try:
        status = await fetcher.get("/api/v1/status")
    finally:
        await fetcher.close()
    try:
        return _report(redacted(url), msgspec.json.decode(status))
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotAnExposition("the status is not one of a specdec-sidecar of this version") from error


def _report(url: str, status: dict[str, Any]) -> Report:
    targets = status["targets"]
    return Report(
        origin=f"specdec-sidecar {status['version']} at {url}",
        period="the last minutes (latency_window)",
        models=tuple(table for target in targets for table in _tables(target)),
        engines=tuple(_engine(target, engine) for target in targets for engine in target["engines"]),
        thresholds={
            name.removeprefix("acceptance_"): status["thresholds"][name]
            for name in ("acceptance_net_negative", "acceptance_break_even")
        },
        notes=tuple(dict.fromkeys(_notes(targets))),
    )


def _tables(target: Mapping[str, Any]) -> Iterator[ModelTable]:
    said = answer(target).text if target["up"] else None
    for model in target["requests"]["models"] if target["requests"] else ():
        rows = tuple(row(label, bucket) for label, bucket in model["temperatures"].items() if bucket["requests"])
        yield ModelTable(model["model_name"], model["coverage"], model["residual"], rows, said)


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
    # Below the first bucket's edge a quantile is mere interpolation.
    edge, (p50, p99) = latency["resolution"], (latency["quantiles"][share] for share in ("0.5", "0.99"))
    return Times(
        p50=p50 if p50 >= edge else None,
        p99=p99 if p99 >= edge else None,
        p50_below=edge if p50 < edge else None,
        p99_below=edge if p99 < edge else None,
    )


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
