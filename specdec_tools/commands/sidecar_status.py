"""A running sidecar's JSON: asks for it, and shows it as text or Markdown.

It shows the sidecar's verdicts and computes none.
"""

import json
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from sidecar.wording.numbers import aligned, markdown, utc
from sidecar.wording.speed import break_even
from sidecar.wording.tables import LEGEND
from specdec_tools.commands.status_rows import verdict_rows
from specdec_tools.commands.terminal import BOLD, Paint, plain

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


_SHORT: Final = 3  # columns of the checklist: the condition, what it says, and of what
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

    The answer, then of each model what to change, a row for each temperature, and what presses on
    the requests; unless ``is_brief``, then all that explains. Omits the models while vLLM's metrics
    cannot be read, because the last data describes an earlier moment.
    """
    layout = _MARKDOWN if is_markdown else _TEXT
    item = layout.item
    scrape = status["scrape"]
    answer = status["answer"]
    plugin = status["plugin"]["text"]
    # The rows have the rates.
    has_rows = is_brief and scrape["up"] and any(one["temperatures"] for one in status["models"])
    why = answer["why_beside_rows" if has_rows else "why"]

    yield f"{layout.heading}Does speculation pay? {paint(answer['text'], answer['tone'])}"
    yield ""
    yield " ".join(filter(None, (answer["since"], _moment(status))))
    if why:
        yield paint(why, BOLD) if answer["is_fault"] else why
    is_said = plugin in why or (is_brief and status["plugin"]["state"] == PluginState.OBSERVING)
    if plugin and not is_said:
        yield plugin

    for problem in status["own"]["invalid_settings"]:
        yield f"{item}invalid setting: {problem}"

    about = answer["model_name"]
    # That of the answer comes first: its remedy is to be under the answer.
    models = sorted(status["models"], key=lambda one: one["model_name"] != about)
    for model in models if scrape["up"] else ():
        if model["model_name"] in status["health"]["hanging"]:
            yield from ("", f"model {model['model_name']}", "", *_pressure(model, item))
            continue
        shown = f"{why if about in (None, model['model_name']) else ''} {plugin}"
        summary = _brief if is_brief else _full
        yield from summary(model, status["thresholds"], layout, paint, shown)

    yield ""
    vllm = f", beside vLLM at {status['vllm_url']}" if "vllm_url" in status else ""
    whose = f"specdec-sidecar {status['version']}, {origin}{vllm}"
    if is_brief:
        yield f"{whose}; --all has more"
    else:
        yield f"{whose}; times in milliseconds"
        yield LEGEND


def _moment(status: _Json) -> str:
    """Of which moment it is: that of vLLM's page, while it can be read."""
    scrape = status["scrape"]
    at = scrape["last_scrape"] if scrape["up"] else None
    return f"As of {utc(status['at'] if at is None else at)}."


def _brief(
    model: _Json, thresholds: _Json, layout: _Layout, paint: Paint, shown: str
) -> Iterator[str]:
    """What the status page shows before a click, in its order; no note that is ``shown``."""
    item = layout.item
    checklist = model["checklist_text"]
    yield from ("", f"model {_named(model) if checklist else model['model_name']}")
    yield from _spaced(
        _remedies(model["explanations"], item, paint),
        () if checklist else verdict_rows(model, thresholds, paint),
        _beside(model, shown, item),
        _pressure(model, item),
        _changed(model, layout),
    )
    if checklist:
        yield from ("", *_checklist(checklist, layout, shown, columns=_SHORT))


def _full(
    model: _Json, thresholds: _Json, layout: _Layout, paint: Paint, shown: str
) -> Iterator[str]:
    """All that is known; no note that is ``shown``."""
    item = layout.item
    has_rows = model["checklist"] is None and layout is _TEXT
    yield from ("", f"model {_named(model)}")
    yield from _spaced(
        *(_finding(finding, item) for finding in model["explanations"]),
        verdict_rows(model, thresholds, paint) if has_rows else (),
        _pressure(model, item),
    )
    yield from _details(model, layout, shown)


def _spaced(*blocks: Iterable[str]) -> Iterator[str]:
    """An empty line before each block that has lines."""
    for lines in map(list, blocks):
        yield from ("", *lines) if lines else ()


def _named(model: _Json) -> str:
    return f"{model['model_name']}: {_verdict(model)}"


def _beside(model: _Json, shown: str, item: str) -> Iterator[str]:
    """The notes on the rows, each once, with the temperatures that it is on."""
    whole = [note for note in model["notes"] if note not in shown]
    yield from (f"{item}{note}" for note in whole)

    on: dict[str, list[str]] = {}
    for part in model["temperatures"]:
        note = part["note"]
        if part["window"]["draft_tokens"] and note:
            on.setdefault(note, []).append(part["temperature"])
    yield from (
        f"{item}T {', '.join(temperatures)}: {note}"
        for note, temperatures in on.items()
        if note not in whole and note not in shown
    )


def _pressure(model: _Json, item: str) -> Iterator[str]:
    """What presses on its requests, as far as that is known."""
    names = max((len(name) for name, *_ in model["pressure"]), default=0) + 1
    for name, number, beside in model["pressure"]:
        label = f"{name}:".ljust(names)
        yield f"{item}{label}  {number} ({beside})" if beside else f"{item}{label}  {number}"


def _changed(model: _Json, layout: _Layout) -> Iterator[str]:
    """What a change of how it speculates did; nothing without one."""
    if not model["change_text"]:
        return
    for header, rows in model["tables"]:
        if tuple(header) == CHANGE:
            yield from (*layout.table(header, rows), "")
    yield f"{layout.item}{model['change_text']}"


def _remedies(findings: Sequence[_Json], item: str, paint: Paint) -> Iterator[str]:
    """What to change first, with what to paste; then the others' remedies."""
    advised = [one for one in findings if one["remedy"]]
    if not advised:
        return

    first, *others = advised
    restart = f" {THEN_RESTART}" if first["option"] else ""
    change = f"To change: {first['remedy']}{restart}"
    yield f"{item}{paint(change, BOLD)}"
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

    notes = [_speedup(model), *model["notes"], model["change_text"], *model["details"]]
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


def _checklist(
    text: _Json, layout: _Layout, shown: str, *, columns: int | None = None
) -> Iterator[str]:
    """Would speculation suit it, and what to try first, each with what to paste.

    The table has only its first ``columns``, if these are given.
    """
    if text["conclusion"] not in shown:
        yield from (text["conclusion"], "")
    yield from layout.texts(text["header"][:columns], [row[:columns] for row in text["rows"]])

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
