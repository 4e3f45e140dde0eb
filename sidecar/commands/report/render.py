"""A sidecar's JSON as text or Markdown. It shows the sidecar's verdicts and computes none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.speed.speedup import Withheld
from sidecar.commands.tables import aligned, count, markdown, milliseconds, ratio, share
from sidecar.wording.notes import LIMITATIONS, WITHHELD

_TIMES: Final = ("TTFT P50", "P95", "P99", "TPOT P50", "P95", "P99")
_TEMPERATURES: Final = (
    *("temperature", "verdict", "speedup", "acceptance", "P10", "P50", "P90", "of draft tokens", "requests", *_TIMES),
)
_GROUPS: Final = ("lower acceptance rate", "acceptance", "below the others by", "of draft tokens")
_ENGINES: Final = ("engine", "speculation", "acceptance", "coverage", *_TIMES)

_Json = Mapping[str, Any]
_Table = Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]


def lines(status: _Json, origin: str, *, is_markdown: bool = False) -> Iterator[str]:
    """Text for a terminal, or Markdown for a ticket.

    Omits the models while vLLM's metrics cannot be read, because the last data describes an earlier moment.
    """
    table: _Table = markdown if is_markdown else aligned
    heading, item = ("### ", "- ") if is_markdown else ("", "  ")
    scrape, why, plugin = status["scrape"], status["answer"]["why"], status["plugin"]["text"]
    yield f"{heading}Does speculation pay? {status['answer']['text']}"
    yield ""
    yield from (why, plugin) if plugin not in why else (why,)
    yield f"specdec-sidecar {status['version']}, {origin}; times in milliseconds; ± is the 95 % confidence interval"
    if scrape["up"]:
        for model in status["models"]:
            yield from _model(model, table, item, f"{why} {plugin}")
    elif scrape["last_scrape"] is not None:
        last = datetime.fromtimestamp(scrape["last_scrape"], UTC)
        yield f"vLLM's metrics were last read at {last:%Y-%m-%d %H:%M:%S} UTC."


def _model(model: _Json, table: _Table, item: str, said: str) -> Iterator[str]:
    """All about one model; does not repeat notes that are in ``said``."""
    judged = model["judgement"]
    window = judged["judged"] or judged["evidence"]["window"]
    over = f" over {window['seconds']:,.0f} s" if window["seconds"] else ""
    yield ""
    yield f"model {model['model_name']}: {judged['verdict']} by {judged['basis']}{over}"
    temperatures = [one for one in model["temperatures"] if one["window"]["requests"] or one["window"]["draft_tokens"]]
    groups = [one for one in model["groups"] if one["accepts_less"]]
    for header, rows in (
        (_TEMPERATURES, [_temperature(one) for one in temperatures]),
        (_GROUPS, [_group(one) for one in groups]),
        (_ENGINES, [_engine(one) for one in model["engines"]]),
    ):
        yield from ("", *table(header, rows)) if rows else ()
    for finding in model["explanations"]:
        yield from ("", f"{item}{finding['code']}: {finding['what']}", f"{item}{finding['remedy']} {finding['expect']}")
        yield f"{item}Verify with {finding['verify']}."
    notes = [_speedup(model), *model["notes"]]
    notes += [
        f"no drafts in the window for {one['by']} {one['group']}" for one in model["groups"] if one["without_drafts"]
    ]
    notes = [note for note in notes if note and note not in said]
    notes += [f"temperature {one['temperature']}: {one['note']}" for one in temperatures if one["note"]]
    notes += [
        f"engine {one['key']['engine']}: {LIMITATIONS[Limitation(name)]}"
        for one in model["engines"]
        for name in one["limitations"]
    ]
    yield from ("", *(f"{item}{note}" for note in notes)) if notes else ()


def _speedup(model: _Json) -> str:
    """The speedup over plain decoding, or why there is none; empty for a model that does not speculate."""
    speed = model["speed"]
    if speed is None or speed["speedup"] is None:
        return f"no speedup: {WITHHELD[Withheld(speed['withheld'])]}" if speed and speed["withheld"] else ""
    found, break_even = speed["speedup"], speed["break_even_acceptance"]
    text = f"speedup {found['ratio']:.3f} ± {2 * found['error']:.3f}"
    return text if break_even is None else f"{text}; break-even acceptance rate {ratio(break_even)}"


def _temperature(one: _Json) -> tuple[str, ...]:
    accepted = one["acceptance_quantiles"]
    return (
        one["temperature"],
        one["judgement"]["verdict"],
        ratio(one["speedup"]["ratio"] if one["speedup"] else None),
        ratio(one["window"]["rate"]),
        *(ratio(accepted.get(quantile)) for quantile in ("0.1", "0.5", "0.9")),
        share(one["window"]["share"]),
        count(one["window"]["requests"]),
        *_times(one["ttft_quantiles"]),
        *_times(one["tpot_quantiles"]),
    )


def _group(one: _Json) -> tuple[str, ...]:
    below = "-" if one["difference"] is None else f"{-one['difference']['value']:.3f}"
    return (f"{one['by']} {one['group']}", ratio(one["window"]["rate"]), below, share(one["window"]["share"]))


def _engine(one: _Json) -> tuple[str, ...]:
    found, acceptance = one["speculation"], one["acceptance"]
    how = f"{found['method']}, {found['num_speculative_tokens']} tokens" if found else "-"
    return (
        one["key"]["engine"],
        how,
        ratio(acceptance["rate"] if acceptance else None),
        ratio(one["coverage"]),
        *_engine_times(one["latencies"].get("ttft")),
        *_engine_times(one["latencies"].get("tpot")),
    )


def _engine_times(latency: _Json | None) -> tuple[str, ...]:
    """Quantiles below the first bucket's edge are mere interpolation, so only the edge is shown."""
    if latency is None:
        return _times({})
    edge, quantiles = latency["resolution"], latency["quantiles"]
    shown = zip(_times(quantiles), ("0.5", "0.95", "0.99"), strict=True)
    return tuple(f"<{milliseconds(edge)}" if quantiles[quantile] < edge else text for text, quantile in shown)


def _times(quantiles: _Json) -> tuple[str, ...]:
    return tuple(milliseconds(quantiles.get(quantile)) for quantile in ("0.5", "0.95", "0.99"))
