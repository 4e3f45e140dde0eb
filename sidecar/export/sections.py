"""The page's sections: one for each model, and one for each engine.

A model's section has its temperatures, groups and times.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2

from sidecar.analysis.engine.latency import Latency
from sidecar.analysis.evidence import CONFIDENCE, NO_DRAFTS
from sidecar.analysis.history import History, Line, Quantity
from sidecar.analysis.judgement import Basis, Judgement, Verdict
from sidecar.analysis.report import EngineReport, ModelReport, TemperatureReport
from sidecar.analysis.speed.speedup import Speedup
from sidecar.analysis.split.plugin_state import NoSplit, PluginReport
from sidecar.engine.names import Gauge, Phase
from sidecar.export.declaration import ReportView
from sidecar.export.lines import hour_line
from sidecar.findings.catalog import explanations
from sidecar.findings.ending import endings_sentence
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import advised
from sidecar.settings.baselines import PlainLatency
from sidecar.settings.groups import Thresholds
from sidecar.wording.advice import THEN_RESTART
from sidecar.wording.answer import effect, is_unclear, per_step, tone_of
from sidecar.wording.change import CHANGE, change_rows, change_sentence, speculation_phrase
from sidecar.wording.notes import fitting_note, judgement_note, model_notes
from sidecar.wording.numbers import UNBROKEN, by_position, counted, duration, latency, percent
from sidecar.wording.plugin import no_split_sentence
from sidecar.wording.pressure import gap_text, tiles
from sidecar.wording.speed import CONTEXTS, break_even_sentence, context_rows, plus_minus
from sidecar.wording.tables import (
    LOWER,
    OTHER_PRICES,
    PRICES,
    TEMPERATURES,
    judged_window,
    lower_rows,
    price_rows,
    shown_quantiles,
    temperature_rows,
)
from sidecar.wording.verdicts import TOO_LITTLE, is_guess, verdict_words

FIDELITY = "docs/fidelity.md"  # its path on this server
_WIDTH = 300
_LOAD = {Gauge.REQUESTS_RUNNING: "running", Gauge.REQUESTS_WAITING: "waiting"}


def bar(value: float | None, thresholds: Sequence[float]) -> str:
    """A share from 0 to 1 as a bar, with a mark at each threshold."""
    fill = ""
    if value is not None:
        fill = f'<rect class="fill" height="12" width="{value * _WIDTH:.1f}" rx="2"/>'

    marks = "".join(
        f'<line class="threshold" x1="{at * _WIDTH:.1f}" x2="{at * _WIDTH:.1f}" y2="12"/>'
        for at in thresholds
    )

    return (
        f'<svg viewBox="0 0 {_WIDTH} 12" preserveAspectRatio="none" height="12" aria-hidden="true">'
        f'<rect class="track" width="{_WIDTH}" height="12" rx="2"/>{fill}{marks}</svg>'
    )


def axis(speedup: Speedup) -> str:
    """A speedup and its 95 % interval, by its logarithm on an axis from a half to twice as fast.

    What lies outside of it stands at its end.
    """
    low, middle, high = (
        _place(speedup.ratio + away * speedup.error) for away in (-CONFIDENCE, 0.0, CONFIDENCE)
    )
    label = f"speedup {plus_minus(speedup)}, on an axis from 0.5 to 2"
    return (
        f'<svg class="axis" viewBox="0 0 {_WIDTH} 22" height="22" role="img" aria-label="{label}">'
        f'<line class="one" x1="{_WIDTH / 2}" x2="{_WIDTH / 2}" y2="22"/>'
        f'<line class="interval" x1="{low:.1f}" x2="{high:.1f}" y1="11" y2="11"/>'
        f'<circle class="fill" cx="{middle:.1f}" cy="11" r="6"/></svg>'
    )


def _place(ratio: float) -> float:
    """Where a ratio stands on the axis."""
    bounded = min(max(ratio, 0.5), 2.0)
    return _WIDTH * (0.03 + 0.47 * (1 + log2(bounded)))


def distribution(counts: Sequence[int], threshold: float) -> str:
    """Requests by acceptance, in equal bins from 0 to 1; bins below ``threshold`` stand out."""
    highest = max(counts, default=0)
    if not highest:
        return ""

    width = 100 / len(counts)
    bins = "".join(
        f'<rect class="bin{" low" if (index + 1) / len(counts) <= threshold else ""}"'
        f' x="{index * width + 0.5:.1f}" width="{width - 1:.1f}"'
        f' y="{28 - 28 * count / highest:.1f}" height="{28 * count / highest:.1f}"/>'
        for index, count in enumerate(counts)
    )

    return (
        '<svg viewBox="0 0 100 28" preserveAspectRatio="none" height="28" role="img" '
        f'aria-label="requests by acceptance, 0 to 1">{bins}</svg>'
    )


def engine_section(engine: EngineReport, baselines: Mapping[str, PlainLatency]) -> str:
    """Three panels.

    ``baselines`` are the model's baseline latencies by phase.
    """
    key = engine.key
    acceptance = engine.acceptance or NO_DRAFTS
    length = f", {acceptance.length:.2f} tokens per draft" if acceptance.length else ""
    positions = by_position(acceptance, "out of all drafts")
    load = ", ".join(
        f"{engine.gauges[gauge]:.0f} {what}"
        for gauge, what in _LOAD.items()
        if gauge in engine.gauges
    )
    capacity = engine.kv_cache_capacity_tokens
    tokens = "" if capacity is None else f" of {capacity:,} tokens"

    return (
        f"<h2>{escape(key.model_name)} <small>engine {escape(key.engine)}</small></h2>"
        '<div class="panels">'
        '<div class="panel"><h3>Acceptance rate, all requests</h3>'
        f"{value(percent(acceptance.rate))}{length}"
        f'<div class="facts">{positions}</div></div>'
        '<div class="panel"><h3>KV-cache usage, peak</h3>'
        f"{value(percent(engine.kv_cache_peak))}{tokens}"
        f'<div class="facts">{load}</div></div>'
        '<div class="panel"><h3>Latency</h3>'
        f"{_latencies(engine.latencies, baselines)}</div></div>"
    )


def value(text: str) -> str:
    """A panel's main number."""
    return f'<span class="value number">{text}</span>'


def _latencies(latencies: Mapping[Phase, Latency], baselines: Mapping[str, PlainLatency]) -> str:
    rows = []
    for phase, measured in latencies.items():
        half, _, most = shown_quantiles(measured, latency)
        rows.append((phase.upper(), half, most, gap_text(measured, baselines.get(phase))))

    table = _table(("", "P50", "P99", "P99 - P50"), rows)
    return table or '<p class="facts">No requests in the window.</p>'


def model_section(model: ModelReport, shown: ReportView, said: str) -> str:
    """Everything known about one model, across its engines; does not repeat what is in ``said``."""
    thresholds = shown.settings.thresholds
    plugin = shown.report.plugin
    history = shown.history
    if model.checklist is not None:
        return _plain(model, plugin, history, said)

    # Its verdicts are of before, and would look current.
    if model.model_name in shown.report.health.hanging:
        return f"<h2>{escape(model.model_name)}</h2>{_tiles(model, history)}{_engines(model)}"

    told = explanations(model)
    if model.no_split is None:
        split = _split(model, thresholds, history, said)
    else:
        split = _no_split(model.no_split, plugin, said)

    return (
        f"<h2>{escape(model.model_name)} <small>{escape(_speculates(model))}</small></h2>"
        f'{_remedy(model, told)}<div class="buckets">{_heads(model, thresholds)}'
        f"{_whole(model, thresholds, history, said)}{split}</div>"
        f"{_tiles(model, history)}{_folds(model, told, thresholds)}"
    )


def fold(name: str, title: str, content: str, *, is_open: bool = False) -> str:
    """Content that opens with a click; empty without content. ``name`` is unique on the page."""
    if not content:
        return ""
    state = " open" if is_open else ""
    return (
        f'<details data-fold="{escape(name)}"{state}><summary>{escape(title)}</summary>'
        f"{content}</details>"
    )


def _folds(model: ModelReport, told: Sequence[Explanation], thresholds: Thresholds) -> str:
    """What is asked for after the answer, by question."""
    contents = (
        ("Why, and what to expect", _why(told, fitting_note(model))),
        ("By temperature, in numbers", _numbers(model)),
        ("By load and by context", f"{_speed(model)}{_contexts(model)}"),
        ("Requests with a lower acceptance rate", _lower(model)),
        ("The price", _prices(model)),
        ("Replies", _outputs(model)),
        ("How to read the rows", _legend(model, thresholds)),
    )

    changed = fold(
        f"{model.model_name} change", "Before and after the change", _change(model), is_open=True
    )
    others = (fold(f"{model.model_name} {title}", title, content) for title, content in contents)
    return f"{changed}{''.join(others)}{_engines(model)}"


def _engines(model: ModelReport) -> str:
    """Each engine's acceptance, KV cache and latencies."""
    sections = (engine_section(engine, model.plain_latencies) for engine in model.engines)
    return fold(f"{model.model_name} engines", "Engines", "".join(sections))


def wide_table(label: str, table: str) -> str:
    """A table that scrolls sideways where it is wider than the page, also by keyboard."""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'
    )


def _first_remedy(told: Sequence[Explanation]) -> Explanation | None:
    """What to change first; None if nothing is known to help."""
    return next((one for one in told if one.remedy), None)


def _remedy(model: ModelReport, told: Sequence[Explanation]) -> str:
    """What to change first, under the answer; may be empty."""
    found = _first_remedy(told)
    if found is None:
        return ""

    paste = to_paste(found.option) if found.option else ""
    restart = f" {THEN_RESTART}" if found.option else ""
    first, *_ = found.what.split(". ")  # the rest is in the fold
    label = escape(f"what to change for {model.model_name}")
    return (
        f'<section class="fix" aria-label="{label}"><p><strong>{marked(found.remedy)}'
        f"{restart}</strong></p>{paste}<p class=facts>{marked(first.rstrip('.'))}.</p></section>"
    )


def _tiles(model: ModelReport, history: History) -> str:
    """The KV cache, latencies and the queue: of the engine where each is worst, and its hour."""
    shown = "".join(
        f'<div class="tile"><h3>{name}</h3>{value(escape(number))} <small>{marked(beside)}</small>'
        f"{hour_line(history, Line(model.model_name, None, quantity))}</div>"
        for name, number, beside, quantity in tiles(model)
    )
    return f'<div class="tiles">{shown}</div>' if shown else ""


def _plain(model: ModelReport, plugin: PluginReport, history: History, said: str) -> str:
    """What is known of a model that does not speculate, so that there is nothing to judge."""
    ended = endings_sentence(model)
    replies = f'<p class="facts">{ended}</p>' if ended else ""
    split = "" if model.no_split is None else _no_split(model.no_split, plugin, said)
    name = escape(model.model_name)
    heading = f"<h2>{name} <small>does not speculate</small></h2>"
    return f"{heading}{replies}{split}{_tiles(model, history)}{_engines(model)}"


def _outputs(model: ModelReport) -> str:
    """How outputs end, and the page on whether they are still right; empty without drafts."""
    if not judged_window(model.judgement).draft_tokens:
        return ""

    ended = endings_sentence(model)
    said = " ".join(filter(None, (ended, "Speed says nothing about the text.")))
    link = f'<a href="{FIDELITY}">Is it still what the model says without speculation?</a>'
    return f'<p class="facts">{said} {link}</p>'


def _why(told: Sequence[Explanation], fits: str) -> str:
    """The findings: of the first remedy, which is under the answer, what to expect of it.

    Then what ``fits``, if that is known.
    """
    first = _first_remedy(told)
    items = "".join(f"<li>{_finding(one, is_told=one is first)}</li>" for one in told)
    items += f"<li>{marked(fits)}</li>" if fits else ""
    return f'<ul class="notes">{items}</ul>' if items else ""


def _finding(finding: Explanation, *, is_told: bool) -> str:
    """A finding: what to do with what to paste, unless it ``is_told``, or a fact."""
    code = f"<strong>{escape(finding.code)}</strong>"
    if not finding.remedy:
        return f"{code} {marked(finding.what)}<br><small>{marked(finding.expect)}</small>"

    change = ""
    if not is_told:
        paste = to_paste(finding.option) if finding.option else ""
        change = f"<br>{marked(finding.remedy)}{paste}"
    return (
        f"{code} {marked(finding.what)}{change}"
        f"<br><small>{marked(finding.expect)} To verify: {marked(finding.verify)}</small>"
    )


def to_paste(option: str) -> str:
    """An option of vLLM with a button that copies it."""
    return (
        f'<div class="paste"><button type="button">copy</button><code>{escape(option)}</code></div>'
    )


def _speculates(model: ModelReport) -> str:
    """How the model's engines speculate, according to the plug-in."""
    known = [engine.speculation or engine.said for engine in model.engines]
    configured = dict.fromkeys(filter(None, known))

    return "; ".join(map(speculation_phrase, configured))


def _hour(model: ModelReport, temperature: str | None, history: History) -> str:
    """The last hour's speedup or, where no time is known, acceptance rate."""
    lines = (
        hour_line(history, Line(model.model_name, temperature, quantity))
        for quantity in (Quantity.SPEEDUP, Quantity.ACCEPTANCE)
    )
    return next(filter(None, lines), "")


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A row of what was judged: its cells as HTML, and its acceptance rate."""

    name: str
    of: str  # which drafts it has
    rate: float | None
    spread: str  # the speedup on its axis or, without one, requests by acceptance rate
    figures: str
    notes: str


def _bucket(bucket: _Bucket, judged: Judgement, thresholds: Thresholds, hour: str) -> str:
    low = thresholds.acceptance_net_negative
    marks = (low, thresholds.acceptance_break_even) if judged.basis is Basis.ACCEPTANCE else ()
    words, _, beside = verdict_words(judged).partition(", ")
    verdict = f"{words}, <small>{beside}</small>" if beside else words

    return (
        f'<div class="bucket {tone_of(judged)}{" guess" if is_guess(judged) else ""}">'
        f'<div class="name">{bucket.name}<small>{bucket.of}</small></div>'
        f'<div class="verdict">{verdict}{hour}</div>'
        f'<div class="bar">{value(percent(bucket.rate))} accepted{bar(bucket.rate, marks)}</div>'
        f'<div class="spread">{bucket.spread}</div>'
        f'<div class="facts number">{bucket.figures}</div>{bucket.notes}</div>'
    )


def _with_drafts(model: ModelReport) -> list[TemperatureReport]:
    """The temperatures that have a row."""
    return [one for one in model.temperatures if one.window.draft_tokens]


def _heads(model: ModelReport, thresholds: Thresholds) -> str:
    """What is drawn in the columns of the rows; a narrow screen has no room for it."""
    shown = _with_drafts(model)
    judged = [model.judgement, *(one.judgement for one in shown)]
    marks = ""
    if any(one.basis is Basis.ACCEPTANCE for one in judged):
        low = percent(thresholds.acceptance_net_negative)
        marks = f"rule of thumb: {low}, {percent(thresholds.acceptance_break_even)}"

    has_whole = model.speed is not None and model.speed.in_force is not None
    is_timed = has_whole or any(one.speedup or one.held for one in shown)
    spread = "requests by acceptance rate"
    if is_timed:
        spread = "".join(f"<span>{end}</span>" for end in ("0.5", "1", "2"))

    heads = ("", "last hour", marks, spread)
    cells = "".join(f"<div>{head}</div>" for head in heads)
    return f'<div class="heads{" timed" if is_timed else ""}" aria-hidden="true">{cells}</div>'


def _whole(model: ModelReport, thresholds: Thresholds, history: History, said: str) -> str:
    """The row of all requests."""
    judged = model.judgement
    window = judged_window(judged)
    left = [note for note in model_notes(model) if note not in said]
    notes = "".join(f'<div class="advice">{marked(note)}</div>' for note in left)
    drafted = "nothing drafted"
    if window.draft_tokens:
        drafted = f"{window.draft_tokens:,.0f} drafted in {duration(window.seconds)}"

    speed = model.speed
    held = speed.held.speedup if speed is not None and speed.held is not None else None
    speedup = speed.speedup if speed is not None else None
    spread, figures = _speedup(judged, speedup, held)
    over = speedup.seconds if speedup is not None else None
    if over and duration(over) != duration(window.seconds):
        figures += f"<br>over {duration(over)}"

    row = _Bucket("All requests", drafted, window.rate, spread, figures, notes)
    return _bucket(row, judged, thresholds, _hour(model, None, history))


def _speedup(judged: Judgement, speedup: Speedup | None, held: Speedup | None) -> tuple[str, str]:
    """A speedup on its axis, and in figures; both are empty without one that can be judged.

    ``held`` is the last one known, which stands in for it.
    """
    shown = speedup or held
    if shown is None or verdict_words(judged) == TOO_LITTLE:
        return "", ""

    what = "no clear difference" if is_unclear(shown) else effect(shown)
    if speedup is None:
        what = "the last one known"
    elif judged.by_speedup in (None, Verdict.INSUFFICIENT_DATA):
        what = "not certain yet"
    return axis(shown), f"speedup {value(plus_minus(shown))}<br>{what}"


def _split(model: ModelReport, thresholds: Thresholds, history: History, said: str) -> str:
    """A row for each temperature with drafts; without the notes that the row of all has."""
    shown = _with_drafts(model)
    above = f"{said} {' '.join(model_notes(model))}"
    rows = "".join(_at_temperature(one, model, thresholds, history, above) for one in shown)
    return rows or '<p class="facts">No drafts in the window.</p>'


def _numbers(model: ModelReport) -> str:
    """What the rows of the temperatures leave out."""
    table = _table(("", *TEMPERATURES[1:]), temperature_rows(model))
    gains = "".join(f"<li>{line}</li>" for line in map(_gain, model.temperatures) if line)
    listed = f'<ul class="notes">{gains}</ul>' if gains else ""
    note = '<p class="facts">Times in milliseconds.</p>' if table else ""
    wide = wide_table(f"numbers of {model.model_name} by temperature", table)
    return f"{wide}{note}{_drafts(model)}{listed}" if table else ""


def _drafts(model: ModelReport) -> str:
    """How long accepted drafts are, and what a step gives."""
    judgement = model.judgement
    window = judged_window(judgement)
    recent = judgement.evidence.window  # of which the steps are
    span = "" if window == recent else f" in the last {duration(recent.seconds)}"
    steps = model.speed.steps if model.speed is not None else None

    parts = [f"{window.length:.2f} tokens per draft"] if window.length else []
    if steps is not None:
        parts.append(f"{per_step(steps)}{span}")
    rates = by_position(window, "out of the tokens drafted there")
    said = f"{'; '.join(parts)}. " if parts else ""
    return f'<p class="facts">{said}{rates}</p>'


def _legend(model: ModelReport, thresholds: Thresholds) -> str:
    """What the marks, points and histograms of the rows are."""
    shown = _with_drafts(model)
    lines = []
    if any(one.judgement.basis is Basis.ACCEPTANCE for one in shown):
        low = percent(thresholds.acceptance_net_negative)
        high = percent(thresholds.acceptance_break_even)
        lines.append(
            f"Marks, a rule of thumb: below {low} speculation costs more than it saves; at {high}"
            " and above it pays. A dashed edge: only that rule says so."
        )
    if any(one.speedup is None for one in shown):
        lines.append("Histograms: finished requests with drafts, by acceptance rate, 0% to 100%.")
    if any(one.speedup is not None for one in shown):
        lines.append("Points: the speedup and its 95 % interval from 0.5 to 2; the line is at 1.")
    lines.append("Small lines: the last hour, of the speedup or else the acceptance rate.")
    return f'<p class="facts">{" ".join(lines)}</p>' if lines else ""


def _no_split(no_split: NoSplit, plugin: PluginReport, said: str) -> str:
    sentence = no_split_sentence(no_split, plugin)
    return "" if sentence in said else f'<p class="facts">{marked(sentence)}</p>'


def _at_temperature(
    bucket: TemperatureReport,
    model: ModelReport,
    thresholds: Thresholds,
    history: History,
    said: str,
) -> str:
    """The row of a temperature's requests."""
    judged = bucket.judgement
    note = judgement_note(judged, model.judgement, is_explained=bool(advised(model.findings)))
    notes = "" if note in said else f'<div class="advice">{escape(note)}</div>'

    held = bucket.held.speedup if bucket.held is not None else None
    spread, figures = _speedup(judged, bucket.speedup, held)
    if not spread:
        spread = distribution(bucket.acceptance_bins, thresholds.acceptance_net_negative)
        requests = counted(bucket.window.requests or 0, "request")
        figures = f"P10 {percent(bucket.acceptance_quantiles[0.1])}<br>{requests}"

    row = _Bucket(
        name=f"T {marked(bucket.temperature)}",
        of=f"{percent(bucket.window.share)} of draft tokens",
        rate=judged_window(judged).rate,
        spread=spread,
        figures=figures,
        notes=notes,
    )
    return _bucket(row, judged, thresholds, _hour(model, bucket.temperature, history))


def _gain(bucket: TemperatureReport) -> str:
    """The time that a temperature's requests saved and lost, if known."""
    saved = bucket.saved_seconds
    lost = bucket.lost_seconds
    if bucket.speedup is None or saved is None or lost is None:
        return ""
    return (
        f"T {marked(bucket.temperature)}: {duration(saved)} of request time saved,"
        f" {duration(lost)} lost since the sidecar started"
    )


def _change(model: ModelReport) -> str:
    """What a change of how it speculates did; empty without one."""
    said = change_sentence(model)
    if not said:
        return ""
    table = _table(("", *CHANGE[1:]), change_rows(model))
    return f'{table}<p class="facts">{marked(said)}</p>'


def _lower(model: ModelReport) -> str:
    """The groups that accept clearly less than the model's other requests; may be empty."""
    return _table(("", *LOWER[1:]), lower_rows(model))


def _speed(model: ModelReport) -> str:
    """TPOT by load; empty without a baseline."""
    if model.speed is None or not any(load.plain_tpot_seconds for load in model.loads):
        return ""

    rows = [
        (
            load.running,
            _time(load.tpot_seconds, "no traffic"),
            _time(load.plain_tpot_seconds, "not measured"),
        )
        for load in model.loads
    ]
    table = _table(("requests running", "with speculation", "without (baseline)"), rows)
    said = f"The mean of all tokens after a request's first. {break_even_sentence(model.speed)}"
    return f'<h3>Mean TPOT by load</h3>{table}<p class="facts">{said.rstrip()}</p>'


def _contexts(model: ModelReport) -> str:
    """Speedup by the tokens that requests hold; empty where it is not known."""
    table = _table(("", *CONTEXTS[1:]), context_rows(model))
    title = "<h3>Speedup by context, tokens</h3>"
    note = (
        "Over the last hour, by the mean context of the requests that decode; a time per token is"
        " the mean, with prefill."
    )
    return table and f'{title}{table}<p class="facts">{note}</p>'


def _time(seconds: float | None, unknown: str) -> str:
    return unknown if seconds is None else latency(seconds)


def _prices(model: ModelReport) -> str:
    """What speculation takes and gives besides; empty without a baseline."""
    table = _table(("", *PRICES[1:]), price_rows(model))
    note = f'<p class="facts">{marked(OTHER_PRICES)}</p>'
    return table and f"{table}{note}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose rows begin with what they are about; empty without rows."""
    heads = "".join(_head("col", name) for name in header)
    lines = [f"<tr>{heads}</tr>", *map(_row, rows)]
    return f"<table>{''.join(lines)}</table>" if rows else ""


def _row(texts: Sequence[str]) -> str:
    first, *others = texts
    cells = "".join(f"<td class=number>{escape(text)}</td>" for text in others)
    return f"<tr>{_head('row', first)}{cells}</tr>"


def _head(scope: str, text: str) -> str:
    """What a column or a row is about; the corner is about nothing."""
    return f"<th scope={scope}>{escape(text)}</th>" if text else "<td></td>"


def marked(note: str) -> str:
    """Marks text in backticks as code, and ranges such as 0.7-1.

    No line breaks within a range, a temperature or a number and its unit.
    """
    *parts, last = re.split("`([^`]+)`", escape(note))
    said = "".join(
        f"{UNBROKEN.sub('&nbsp;', text)}<code>{code}</code>"
        for text, code in zip(parts[::2], parts[1::2], strict=True)
    )
    coded = f"{said}{UNBROKEN.sub('&nbsp;', last)}"
    return re.sub(r"\d[\w.]*-\d[\w.]*", r"<span class=number>\g<0></span>", coded)
