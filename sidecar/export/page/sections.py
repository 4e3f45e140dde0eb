"""The parts of the page, each from a part of the status."""

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from sidecar.analysis.steps import load_label
from sidecar.export.page.answer import TONES, answer
from sidecar.export.page.charts import bar, distribution, over_time, two_curves
from sidecar.export.request_notes import unattributed

Status = Mapping[str, Any]


def target_section(target: Status, thresholds: Mapping[str, float]) -> str:
    """One server: the answer, its temperatures, its engines, and hints."""
    said = answer(target)
    parts = [f'<p class="answer {said.tone}">{escape(said.text)}</p><p class="why">{escape(said.why)}</p>']
    if target["up"]:
        models = (target["requests"] or {"models": []})["models"]
        parts += [_model(model, thresholds) for model in models]
        parts += [_speed(model) for model in target["models"] if model["speed"]]
        parts += [_engine(engine, thresholds) for engine in target["engines"]]
        parts.append(_notes(target))
    return "".join(parts)


def _model(model: Status, thresholds: Mapping[str, float]) -> str:
    rows = "".join(
        _bucket(label, work, thresholds) for label, work in model["temperatures"].items() if work["requests"]
    )
    coverage = f"coverage {percent(model['coverage'])}, residual {percent(model['residual'])}"
    ended = sum(model["ended"].values())
    nothing = (
        f"{unattributed(ended)}." if ended else "No request has finished in the window, or none is attributed yet."
    )
    body = f"{rows}{_legend(thresholds)}" if rows else f'<p class="facts">{nothing}.</p>'
    return (
        f"<h2>{escape(model['model_name'])} by temperature <small>{coverage}</small></h2>"
        f'<div class="buckets">{body}</div>'
    )


def _legend(thresholds: Mapping[str, float]) -> str:
    low, high = thresholds["acceptance_net_negative"], thresholds["acceptance_break_even"]
    return (
        f'<p class="facts">Marks: below {percent(low)} speculation costs more than it gives, from {percent(high)} it '
        "pays. Columns: requests by acceptance, 0% to 100%. T default: requests without a temperature.</p>"
    )


def _gain(speed: Status) -> str:
    """A temperature's speedup and the time saved and lost, if known."""
    if speed["speedup"] is None:
        return ""
    times = f"{speed['speedup']:.2f} ± {2 * speed['error']:.2f} times as fast as plain"
    contradiction = ", though engine and clients disagree" if speed["contradicts"] else ""
    saved, lost = _duration(speed["saved_seconds"]), _duration(speed["lost_seconds"])
    balance = f"{saved} of request time saved, {lost} lost since the sidecar started"
    return f'<div class="advice">{times}{contradiction}; {balance}</div>'


def _duration(total: float) -> str:
    return f"{total:.0f} s" if total < 600 else f"{total / 3600:.1f} h"


def _bucket(label: str, work: Status, thresholds: Mapping[str, float]) -> str:
    low = thresholds["acceptance_net_negative"]
    limits = (low, thresholds["acceptance_break_even"])
    advice = f'<div class="advice">{escape(work["advice"])}</div>' if work["advice"] else ""
    return (
        f'<div class="bucket {TONES[work["verdict"]]}">'
        f'<div class="name">T {escape(label)}<small>{work["share"]:.0%} of attributed drafts</small></div>'
        f'<div class="verdict">{escape(work["verdict"].replace("_", " "))}</div>'
        f'<div class="bar">{_value(percent(work["acceptance"]))}{bar(work["acceptance"], limits)}</div>'
        f'<div class="spread">{distribution(work["distribution"], low)}</div>'
        f'<div class="facts number">P10 {percent(work["p10"])}<br>{_requests(work["requests"])}</div>'
        f"{_gain(work['speed'])}{advice}</div>"
    )


def _speed(model: Status) -> str:
    """The two curves, and the query for the time saved over a day; empty without a reference."""
    speed = model["speed"]
    if speed["reference"] is None:
        return ""
    running = speed["requests_running"]
    load = load_label(running) if running else None
    points = [(one["running"], one["actual_seconds"], one["plain_seconds"]) for one in speed["by_load"]]
    now, balance = "", ""
    if speed["speedup"] is not None:
        times = f"{speed['speedup']:.2f}"
        now = f"{_value(times)} ± {2 * speed['error']:.2f}, "
        balance = f'<div class="facts">Time saved over a day, in Prometheus: <code>{_SAVED_OVER_A_DAY}</code></div>'
    break_even = speed["break_even_acceptance"]
    least = "" if break_even is None else f"Breaks even at an acceptance of {percent(break_even)}. "
    return (
        f"<h2>{escape(model['model_name'])} against plain decoding <small>{escape(speed['reference'])}</small></h2>"
        f'<div class="panels"><div class="panel"><h3>Times as fast</h3>{now}{running or 0:.1f} requests running'
        f'<div class="facts">{least}{escape(speed["withheld"] or "")}</div>{balance}</div>'
        f'<div class="panel"><h3>Time per token by requests running</h3>{two_curves(points, load)}'
        '<div class="facts">Solid: speculating, since the start. Dashed: plain. The mark: now.</div></div></div>'
    )


_SAVED_OVER_A_DAY = (
    "sum(increase(specdec_time_saved_seconds_total[1d])) - sum(increase(specdec_time_lost_seconds_total[1d]))"
)


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _engine(engine: Status, thresholds: Mapping[str, float]) -> str:
    acceptance = engine["acceptance"] or {"rate": None, "length": None}
    gauges = {"running": engine["gauges"].get("requests_running"), "waiting": engine["gauges"].get("requests_waiting")}
    load = ", ".join(f"{count:.0f} {what}" for what, count in gauges.items() if count is not None)  # if exported
    length = "" if acceptance["length"] is None else f", {acceptance['length']:.2f} tokens a step"
    capacity = engine["kv_cache_capacity_tokens"]
    tokens = "" if capacity is None else f" of {capacity:,} tokens"
    return (
        f"<h2>{escape(engine['model_name'])} <small>engine {escape(engine['engine'])}</small></h2>"
        '<div class="panels">'
        f'<div class="panel"><h3>Acceptance rate, all requests</h3>{_value(percent(acceptance["rate"]))}{length}'
        f"{over_time(engine['acceptance_history'], thresholds['acceptance_net_negative'])}</div>"
        f'<div class="panel"><h3>KV cache in use, peak</h3>{_value(percent(engine["kv_cache_usage_peak"]))}{tokens}'
        f"{over_time(engine['kv_cache_history'], thresholds['kv_cache_usage'])}"
        f'<div class="facts">{load}</div></div>'
        f'<div class="panel"><h3>Latency</h3>{_latencies(engine["latency"])}</div></div>'
    )


def _value(text: str) -> str:
    return f'<span class="value number">{text}</span>'


def _latencies(latencies: Mapping[str, Status]) -> str:
    if not latencies:
        return '<p class="facts">No request in the window.</p>'
    rows = "".join(
        f"<tr><th>{phase.upper()}</th><td class=number>{_quantile(latency, '0.5')}</td>"
        f"<td class=number>{_quantile(latency, '0.99')}</td>"
        f"<td class=number>{_gap(latency)}</td></tr>"
        for phase, latency in latencies.items()
    )
    return f"<table><tr><th></th><td>P50</td><td>P99</td><td>gap</td></tr>{rows}</table>"


def _quantile(latency: Status, quantile: str) -> str:
    """In vLLM's first bucket only its edge is known."""
    value, resolution = latency["quantiles"][quantile], latency["resolution"]
    return escape(f"< {seconds(resolution)}") if value < resolution else seconds(value)


def _gap(latency: Status) -> str:
    """In the first bucket the quantiles, the gap and its growth are unknown."""
    if latency["quantiles"]["0.99"] < latency["resolution"]:
        return _quantile(latency, "0.99")
    growth = latency["gap_growth"]
    return seconds(latency["gap_seconds"]) + ("" if growth is None else f" ({growth:.1f} times the baseline)")


def _notes(target: Status) -> str:
    notes = "".join(f"<li>{_marked(note)}</li>" for note in _hints(target))
    return f'<h2>Hints</h2><ul class="notes">{notes}</ul>' if notes else ""


def _marked(note: str) -> str:
    """Marks text in backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(note))


_NO_SOURCE = (
    "Acceptance is not split by temperature: set `SPECDEC_REQUESTS__SOURCE` to `middleware`, `proxy` or `traces`."
)


def _hints(target: Status) -> Iterator[str]:
    requests = target["requests"]
    for model in target["models"]:
        if model["speed"] and model["speed"]["withheld"]:
            yield f"No speedup of {model['model_name']} is known: {model['speed']['withheld']}."
    if requests is None:
        yield _NO_SOURCE
    else:
        yield from requests["notes"]
    yield from {
        limitation["name"]: limitation["explanation"]
        for engine in target["engines"]
        for limitation in engine["limitations"]
    }.values()


def percent(value: float | None) -> str:
    """A share for people."""
    return "no data" if value is None else f"{value:.0%}"


def seconds(value: float) -> str:
    """A latency for people."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
