"""The page's sections: one for each model, and one for each engine.

A model's section has its temperatures, groups and times.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape

from sidecar.analysis.engine.latency import Latency, gap_growth
from sidecar.analysis.evidence import NO_DRAFTS
from sidecar.analysis.findings.finding import advised
from sidecar.analysis.judgement import Basis, Judgement
from sidecar.analysis.report import EngineReport, ModelReport, TemperatureReport
from sidecar.analysis.speed.speedup import EngineSpeed
from sidecar.analysis.split.plugin_state import NoSplit, PluginReport
from sidecar.engine.names import Gauge, Phase
from sidecar.settings.groups import Thresholds
from sidecar.wording.answer import effect, leaning_effect, per_step, times_as_fast, tone_of
from sidecar.wording.findings import explanations
from sidecar.wording.findings.endings import endings_sentence
from sidecar.wording.findings.explanation import Explanation
from sidecar.wording.notes import judgement_note, model_notes, verdict_words
from sidecar.wording.numbers import by_position, counted, duration, latency, percent
from sidecar.wording.plugin import no_split_sentence
from sidecar.wording.speed import CONTEXTS, context_rows
from sidecar.wording.tables import (
    LOWER,
    OTHER_PRICES,
    PRICES,
    lower_rows,
    price_rows,
    seen,
    shown_quantiles,
)

FIDELITY = "docs/fidelity.md"  # its path on this server
_WIDTH = 300
_LOAD = {Gauge.REQUESTS_RUNNING: "running", Gauge.REQUESTS_WAITING: "waiting"}


def bar(value: float | None, limits: Sequence[float]) -> str:
    """A share from 0 to 1 as a bar, with a mark at each limit."""
    fill = ""
    if value is not None:
        fill = f'<rect class="fill" height="12" width="{value * _WIDTH:.1f}" rx="2"/>'

    marks = "".join(
        f'<line class="limit" x1="{at * _WIDTH:.1f}" x2="{at * _WIDTH:.1f}" y2="12"/>'
        for at in limits
    )

    return (
        f'<svg viewBox="0 0 {_WIDTH} 12" preserveAspectRatio="none" height="12" aria-hidden="true">'
        f'<rect class="track" width="{_WIDTH}" height="12" rx="2"/>{fill}{marks}</svg>'
    )


def distribution(counts: Sequence[int], limit: float) -> str:
    """Requests by acceptance, in equal bins from 0 to 1; bins below ``limit`` stand out."""
    highest = max(counts, default=0)
    if not highest:
        return ""

    width = 100 / len(counts)
    bins = "".join(
        f'<rect class="bin{" low" if (index + 1) / len(counts) <= limit else ""}"'
        f' x="{index * width + 0.5:.1f}" width="{width - 1:.1f}"'
        f' y="{28 - 28 * count / highest:.1f}" height="{28 * count / highest:.1f}"/>'
        for index, count in enumerate(counts)
    )

    return (
        '<svg viewBox="0 0 100 28" preserveAspectRatio="none" height="28" role="img" '
        f'aria-label="requests by acceptance, 0 to 1">{bins}</svg>'
    )


def engine_section(engine: EngineReport, baselines: Mapping[str, Mapping[float, float]]) -> str:
    """Three panels.

    ``baselines`` are the model's baseline latencies in seconds, by phase and quantile.
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
        '<div class="panel"><h3>Latency by bucket</h3>'
        f"{_latencies(engine.latencies, baselines)}</div></div>"
    )


def value(text: str) -> str:
    """A panel's main number."""
    return f'<span class="value number">{text}</span>'


def _latencies(
    latencies: Mapping[Phase, Latency], baselines: Mapping[str, Mapping[float, float]]
) -> str:
    rows = [
        (
            phase.upper(),
            *shown_quantiles(measured, latency),
            _gap(measured, baselines.get(phase, {})),
        )
        for phase, measured in latencies.items()
    ]

    table = _table(("", "P50", "P95", "P99", "P99 - P50"), rows)
    return table or '<p class="facts">No requests in the window.</p>'


def _gap(measured: Latency, baseline: Mapping[float, float]) -> str:
    growth = gap_growth(measured, baseline)
    if measured.gap_seconds is None:
        gap = shown_quantiles(measured, latency)[-1]
    else:
        gap = latency(measured.gap_seconds)
    return gap if growth is None else f"{gap} ({growth:.1f} times the baseline)"


def model_section(
    model: ModelReport, thresholds: Thresholds, plugin: PluginReport, said: str
) -> str:
    """Everything known about one model, across its engines; does not repeat what is in ``said``."""
    if model.checklist is not None:
        return _plain(model, plugin, said)

    judged = model.judgement
    notes = "".join(f"<div class=advice>{marked(note)}</div>" for note in model_notes(model))
    if model.no_split is None:
        split = _split(model, thresholds)
    else:
        split = _no_split(model.no_split, plugin, said)

    return (
        f"<h2>{escape(model.model_name)} <small>{escape(_speculates(model))}</small></h2>"
        f'<div class="buckets"><div class="bucket whole {tone_of(judged)}">'
        f'<div class="name">All requests</div>{_verdict(judged)}'
        f'<div class="line">{_line(judged, model.speed)}</div>{_outputs(model)}{notes}</div>'
        f"{split}</div>{_why(model)}{_lower(model)}{_speed(model)}{_contexts(model)}"
        f"{_prices(model)}"
    )


def _plain(model: ModelReport, plugin: PluginReport, said: str) -> str:
    """What is known of a model that does not speculate, so that there is nothing to judge."""
    ended = endings_sentence(model)
    replies = f'<p class="facts">{ended}</p>' if ended else ""
    split = "" if model.no_split is None else _no_split(model.no_split, plugin, said)
    name = escape(model.model_name)
    return f"<h2>{name} <small>does not speculate</small></h2>{replies}{split}"


def _outputs(model: ModelReport) -> str:
    """How outputs end, and the page on whether they are still right; empty without drafts."""
    if not seen(model.judgement).draft_tokens:
        return ""

    ended = endings_sentence(model)
    said = " ".join(filter(None, (ended, "Speed says nothing about the text.")))
    link = f'<a href="{FIDELITY}">Is it still what the model says without speculation?</a>'
    return f'<div class="advice">{said} {link}</div>'


def _why(model: ModelReport) -> str:
    """The findings; empty if there are none."""
    items = "".join(f"<li>{_finding(finding)}</li>" for finding in explanations(model))
    return f'<h3>Why</h3><ul class="notes">{items}</ul>' if items else ""


def _finding(finding: Explanation) -> str:
    """A finding: what to do with what to paste, or a fact without a remedy."""
    what = f"<strong>{escape(finding.code)}</strong> {marked(finding.what)}"
    if not finding.remedy:
        return f"{what}<br><small>{marked(finding.expect)}</small>"

    paste = to_paste(finding.option) if finding.option else ""
    return (
        f"{what}<br>{marked(finding.remedy)}{paste}"
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

    texts = []
    for speculation in configured:
        parts = [
            speculation.method or "unknown method",
            counted(speculation.num_speculative_tokens, "token"),
        ]
        if speculation.per_batch_size:
            parts.append("schedule by batch size")
        if speculation.adaptive_verification:
            parts.append("adaptive verification")
        if speculation.draft_sample_method == "greedy":
            parts.append("drafts the likeliest token")
        elif speculation.draft_sample_method:
            parts.append(f"drafts are sampled ({speculation.draft_sample_method})")
        if speculation.rejection_sample_method:
            parts.append(f"sampler {speculation.rejection_sample_method}")
        texts.append(", ".join(parts))

    return "; ".join(texts)


def _verdict(judgement: Judgement) -> str:
    return f'<div class="verdict">{verdict_words(judgement)}</div>'


def _line(judgement: Judgement, speed: EngineSpeed | None) -> str:
    """Acceptance, tokens per draft and per step, speedup and milliseconds in one line."""
    window = seen(judgement)
    if not window.draft_tokens:
        return "No draft tokens in the window."

    accepted = f"{percent(window.rate)} of {counted(window.draft_tokens, 'draft token')} accepted"
    length = f", {window.length:.2f} tokens per draft" if window.length else ""
    recent = judgement.evidence.window  # of which the steps are
    span = "" if window == recent else f" in the last {duration(recent.seconds)}"
    steps = f"; {per_step(speed.steps)}{span}" if speed and speed.steps else ""
    faster = ""
    if speed and speed.speedup:
        what = leaning_effect if judgement.leans else effect
        faster = f"; {times_as_fast(speed.speedup)}, {what(speed.speedup)}"

    return f"{accepted} in the last {duration(window.seconds)}{length}{steps}{faster}"


def _split(model: ModelReport, thresholds: Thresholds) -> str:
    """The temperatures, with a legend."""
    shown = [one for one in model.temperatures if one.window.draft_tokens]
    rows = "".join(_bucket(one, model, thresholds) for one in shown)
    if not rows:
        return '<p class="facts">No drafts in the window.</p>'

    marks = ""
    if any(one.judgement.basis is Basis.ACCEPTANCE for one in shown):
        low = percent(thresholds.acceptance_net_negative)
        high = percent(thresholds.acceptance_break_even)
        marks = (
            f"Marks, a rule of thumb: below {low} speculation costs more than it saves; at {high}"
            " and above it pays. "
        )

    rates = by_position(seen(model.judgement), "out of the tokens drafted there")
    legend = "Histograms: finished requests with drafts, by acceptance rate, 0% to 100%."
    return f'{rows}<p class="facts">{marks}{legend} {rates}</p>'


def _no_split(no_split: NoSplit, plugin: PluginReport, said: str) -> str:
    sentence = no_split_sentence(no_split, plugin)
    return "" if sentence in said else f'<p class="facts">{marked(sentence)}</p>'


def _bucket(bucket: TemperatureReport, model: ModelReport, thresholds: Thresholds) -> str:
    judged = bucket.judgement
    low = thresholds.acceptance_net_negative
    limits = (low, thresholds.acceptance_break_even) if judged.basis is Basis.ACCEPTANCE else ()
    window = seen(judged)
    p10 = bucket.acceptance_quantiles[0.1]
    share = percent(bucket.window.share)
    requests = counted(bucket.window.requests or 0, "request")
    note = judgement_note(judged, model.judgement, is_explained=bool(advised(model.findings)))
    advice = f'<div class="advice">{escape(note)}</div>' if note else ""

    return (
        f'<div class="bucket {tone_of(judged)}">'
        f'<div class="name">T {marked(bucket.temperature)}'
        f"<small>{share} of draft tokens</small></div>"
        f"{_verdict(judged)}"
        f'<div class="bar">{value(percent(window.rate))} accepted{bar(window.rate, limits)}</div>'
        f'<div class="spread">{distribution(bucket.acceptance_bins, low)}</div>'
        f'<div class="facts number">P10 {percent(p10)}<br>{requests}</div>'
        f"{_gain(bucket)}{advice}</div>"
    )


def _gain(bucket: TemperatureReport) -> str:
    """A temperature's speedup and the time saved and lost, if known."""
    saved = bucket.saved_seconds
    lost = bucket.lost_seconds
    if bucket.speedup is None or saved is None or lost is None:
        return ""
    return (
        f'<div class="advice">{times_as_fast(bucket.speedup)}, {effect(bucket.speedup)}; '
        f"{duration(saved)} of request time saved, {duration(lost)} lost since the sidecar "
        "started</div>"
    )


def _lower(model: ModelReport) -> str:
    """The groups that accept clearly less than the model's other requests; may be empty."""
    table = _table(("", *LOWER[1:]), lower_rows(model))
    return table and f"<h3>Requests with a lower acceptance rate</h3>{table}"


def _speed(model: ModelReport) -> str:
    """Times per token by load; empty without a baseline."""
    if model.speed is None or not any(load.plain_seconds for load in model.loads):
        return ""

    break_even = model.speed.break_even_acceptance
    if break_even is None:
        least = ""
    elif break_even <= 1:
        least = f"Break-even acceptance rate at this load: {percent(break_even)}."
    else:
        least = "No acceptance rate breaks even at this load."

    rows = [
        (
            load.running,
            _time(load.actual_seconds, "no traffic"),
            _time(load.plain_seconds, "not measured"),
        )
        for load in model.loads
    ]
    table = _table(("requests running", "with speculation", "without (baseline)"), rows)
    return f'<h2>{escape(model.model_name)}: time per token</h2>{table}<p class="facts">{least}</p>'


def _contexts(model: ModelReport) -> str:
    """Speedup by the tokens that requests hold; empty where it is not known."""
    table = _table(("", *CONTEXTS[1:]), context_rows(model))
    title = f"<h2>{escape(model.model_name)}: speedup by context, tokens</h2>"
    note = "Over the last hour, by the mean context of the requests that decode."
    return table and f'{title}{table}<p class="facts">{note}</p>'


def _time(seconds: float | None, unknown: str) -> str:
    return unknown if seconds is None else latency(seconds)


def _prices(model: ModelReport) -> str:
    """What speculation takes and gives besides; empty without a baseline."""
    table = _table(("", *PRICES[1:]), price_rows(model))
    note = f'<p class="facts">{marked(OTHER_PRICES)}</p>'
    return table and f"<h2>{escape(model.model_name)}: the price</h2>{table}{note}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose rows begin with what they are about; empty without rows."""
    lines = [_row("td", header), *(_row("td class=number", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>" if rows else ""


def _row(cell: str, texts: Sequence[str]) -> str:
    first, *others = map(escape, texts)
    return f"<tr><th>{first}</th>{''.join(f'<{cell}>{text}</td>' for text in others)}</tr>"


def marked(note: str) -> str:
    """Marks text in backticks as code, and ranges such as 0.7-1.

    No line breaks at the hyphens of marked ranges.
    """
    coded = re.sub("`([^`]+)`", r"<code>\1</code>", escape(note))
    return re.sub(r"\d[\w.]*-\d[\w.]*", r"<span class=number>\g<0></span>", coded)
