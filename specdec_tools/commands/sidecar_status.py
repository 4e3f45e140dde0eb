"""A running sidecar's JSON: asks for it, and shows it as text or Markdown.

It shows the sidecar's verdicts and computes none.
"""

import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.judgement import Basis
from sidecar.analysis.split.plugin_state import PluginState
from sidecar.engine.fetch import Fetcher
from sidecar.errors import NotAnExposition
from sidecar.settings import Settings
from sidecar.wording.advice import THEN_RESTART
from sidecar.wording.change import CHANGE
from sidecar.wording.numbers import aligned, markdown
from sidecar.wording.speed import break_even
from sidecar.wording.tables import LEGEND
from specdec_tools.commands.status_rows import verdict_rows
from specdec_tools.commands.terminal import Paint, plain

_Json = Mapping[str, Any]
_Table = Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """How it is written: for a terminal, or as Markdown for a ticket.

    ``table`` is of numbers, ``texts`` of phrases.
    """

    heading: str
    item: str
    table: _Table
    texts: _Table


def _aligned_texts(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return aligned(header, rows, left=range(len(header)))


_TEXT: Final = _Layout("", "  ", aligned, _aligned_texts)
_MARKDOWN: Final = _Layout("### ", "- ", markdown, markdown)


def own_url(settings: Settings) -> str:
    """The URL of this machine's sidecar, according to its settings."""
    return f"{settings.scheme}://{settings.listen.local}"


async def sidecar_status(url: str, *, tls: ssl.SSLContext | bool) -> dict[str, Any]:
    """The JSON of the sidecar at ``url``.

    ``tls`` verifies its certificate: True by the system's CAs, False not at all.

    Raises:
        ScrapeError: there is no answer, or it is not a JSON object.
    """
    fetcher = Fetcher(url, tls=tls)
    try:
        status = json.loads(await fetcher.get("/api/v1/status"))
    except (ValueError, RecursionError) as error:
        raise NotAnExposition("the status is not JSON") from error
    finally:
        await fetcher.close()

    if not isinstance(status, dict):
        raise NotAnExposition("the status is not one of a specdec-sidecar")
    return status


def status_lines(
    status: _Json,
    origin: str,
    *,
    is_markdown: bool = False,
    is_brief: bool = False,
    paint: Paint = plain,
) -> Iterator[str]:
    """Text for a terminal, or Markdown for a ticket.

    The answer, a row for each temperature, what to change, and what presses on the requests; unless
    ``is_brief``, then all that explains. Omits the models while vLLM's metrics cannot be read,
    because the last data describes an earlier moment.
    """
    layout = _MARKDOWN if is_markdown else _TEXT
    item = layout.item
    scrape = status["scrape"]
    answer = status["answer"]
    plugin = status["plugin"]["text"]
    # The rows have the rates.
    has_rows = is_brief and scrape["up"] and any(one["temperatures"] for one in status["models"])
    why = answer["reason"] if has_rows else answer["why"]

    yield f"{layout.heading}Does speculation pay? {paint(answer['text'], answer['tone'])}"
    is_said = plugin in why or (is_brief and status["plugin"]["state"] == PluginState.OBSERVING)
    said = [line for line in (answer["since"], why, "" if is_said else plugin) if line]
    yield from ("", *said) if said else ()

    for problem in status["own"]["invalid_settings"]:
        yield f"{item}invalid setting: {problem}"

    if scrape["up"]:
        for model in status["models"]:
            if model["model_name"] in status["health"]["hanging"]:
                yield from ("", f"model {model['model_name']}", *_pressure(model, item))
                continue
            yield from _summary(model, status["thresholds"], layout, paint, is_brief=is_brief)
            shown = why if answer["model_name"] in (None, model["model_name"]) else ""
            if is_brief and model["checklist_text"] is not None:
                yield from ("", *_checklist(model["checklist_text"], layout, shown))
            if not is_brief:
                yield from _details(model, layout, f"{shown} {plugin}")

    yield ""
    if is_brief:
        yield f"specdec-sidecar {status['version']}, {origin}; --all has all that is known"
    else:
        yield f"specdec-sidecar {status['version']}, {origin}; times in milliseconds"
        yield LEGEND


def _summary(
    model: _Json, thresholds: _Json, layout: _Layout, paint: Paint, *, is_brief: bool
) -> Iterator[str]:
    """The verdicts, what to change and what presses, in the order of the status page."""
    item = layout.item
    yield ""
    judged = model["checklist"] is None
    said = f": {_verdict(model)}" if not (is_brief and judged) else ""
    yield f"model {model['model_name']}{said}"
    if judged and layout is _TEXT:
        yield from verdict_rows(model, thresholds, paint)

    findings = model["explanations"]
    if is_brief:
        yield from _remedies(findings, item)
        for header, rows in model["tables"]:
            if tuple(header) == CHANGE:  # open on the page, too
                yield from ("", *layout.table(header, rows))
    for finding in () if is_brief else findings:
        yield from ("", *_finding(finding, item))

    yield from _pressure(model, item)


def _pressure(model: _Json, item: str) -> Iterator[str]:
    """What presses on its requests, in a line; nothing where that is not known."""
    pressure = [
        f"{name}: {number} ({beside})" if beside else f"{name}: {number}"
        for name, number, beside in model["pressure"]
    ]
    if pressure:
        yield from ("", f"{item}{'; '.join(pressure)}")


def _remedies(findings: Sequence[_Json], item: str) -> Iterator[str]:
    """What to change first, with what to paste; then the others' remedies."""
    advised = [one for one in findings if one["remedy"]]
    if not advised:
        return

    first, *others = advised
    yield ""
    restart = f" {THEN_RESTART}" if first["option"] else ""
    yield f"{item}To change: {first['remedy']}{restart}"
    if first["option"]:
        yield f"{item}{first['option']}"
    seen_first, *_ = first["what"].split(". ")  # --all has the rest, as the page's fold
    yield f"{item}Why ({first['code']}): {seen_first.rstrip('.')}."
    for one in others:
        yield f"{item}Also ({one['code']}): {one['remedy']}"


def _details(model: _Json, layout: _Layout, shown: str) -> Iterator[str]:
    """What explains the verdicts; does not repeat notes that are ``shown`` already."""
    item = layout.item
    for header, rows in model["tables"]:
        yield from ("", *layout.table(header, rows))

    if model["checklist_text"] is not None:
        yield from ("", *_checklist(model["checklist_text"], layout, shown))

    notes = [_speedup(model), *model["notes"]]
    notes = [note for note in notes if note and note not in shown]
    notes += [
        f"temperature {part['temperature']}: {part['note']}"
        for part in model["temperatures"]
        if part["note"]
    ]
    yield from ("", *(f"{item}{note}" for note in notes)) if notes else ()


def _verdict(model: _Json) -> str:
    """The verdict, by what and over which time; a model with a checklist has none to give.

    What only a speedup could judge, and no speedup is known of, is judged by nothing.
    """
    if model["checklist"] is not None:
        return "does not speculate"

    judgement = model["judgement"]
    seconds = _judged_seconds(model)
    is_based = judgement["by_speedup"] or judgement["basis"] == Basis.ACCEPTANCE
    says = [judgement["basis"]] if is_based else []
    says += [f"over {seconds:,.0f} s"] if seconds else []
    return f"{model['words']} ({' '.join(says)})" if says else str(model["words"])


def _judged_seconds(model: _Json) -> float:
    """Over how long what decided the verdict was measured."""
    judgement = model["judgement"]
    if not judgement["by_speedup"]:
        return float(model[judgement["judged"] or "window"]["seconds"])

    speed = model["speed"] or {"speedup": None, "held": None}
    known = speed["speedup"] or (speed["held"] or {}).get("speedup") or {}
    return float(known.get("seconds") or model["window"]["seconds"])


def _checklist(text: _Json, layout: _Layout, shown: str) -> Iterator[str]:
    """Would speculation suit it, and what to try first, each with what to paste."""
    if text["conclusion"] not in shown:
        yield from (text["conclusion"], "")
    yield from layout.texts(text["header"], text["rows"])

    for candidate in text["candidates"]:
        yield from ("", f"{layout.item}to try, {candidate['method']}: {candidate['why']}")
        yield f"{layout.item}{candidate['option']}"


def _finding(finding: _Json, item: str) -> Iterator[str]:
    """A finding, with what to paste on a line of its own."""
    yield f"{item}{finding['code']}: {finding['what']}"
    yield f"{item}{' '.join(filter(None, (finding['remedy'], finding['expect'])))}"
    if finding["option"]:
        yield f"{item}{finding['option']}"
    if finding["verify"]:
        yield f"{item}To verify: {finding['verify']}"


def _speedup(model: _Json) -> str:
    """The speedup over plain decoding; empty if there is none."""
    speed = model["speed"]
    if speed is None or speed["speedup"] is None:
        return ""

    speedup = speed["speedup"]
    text = f"speedup {_within(speedup['ratio'], speedup['error'])}"
    known = break_even(speed["break_even_acceptance"], speed["break_even_error"], _within)
    if known is None:
        return text
    if not known:
        return f"{text}; no rate breaks even"
    return f"{text}; break-even acceptance rate {known}"


def _within(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {CONFIDENCE * error:.3f}"
