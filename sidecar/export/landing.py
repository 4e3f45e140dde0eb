"""The page at ``/``: one look at the state, without scripts."""

from collections.abc import Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>specdec-sidecar</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta http-equiv="refresh" content="5">
<style>
:root { color-scheme: light dark } body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
padding: 0 1rem } table { border-collapse: collapse } th, td { padding: .2rem .8rem .2rem 0; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums } .bad { color: #c22 } small { opacity: .75 }
</style></head><body>
"""


def landing_page(status: Mapping[str, Any]) -> str:
    """The status (``status.status``) as HTML."""
    parts = [_HEAD, f"<h1>specdec-sidecar <small>{escape(status['version'])}</small></h1>"]
    parts.append(
        '<p><a href="/metrics">metrics</a> · <a href="/api/v1/status">status (JSON)</a> · '
        '<a href="/-/healthy">healthy</a> · <a href="/-/ready">ready</a></p>'
    )
    parts += [_target(target) for target in status["targets"]]
    return "".join(parts) + "</body></html>\n"


def _target(target: Mapping[str, Any]) -> str:
    title = f"<h2>{escape(target['name'])}</h2>"
    if not target["up"]:
        error = target["last_error"]
        why = f"{escape(error['reason'])}: {escape(error['message'])}" if error else "not polled yet"
        return f'{title}<p class="bad">vLLM does not answer ({why}).</p>'
    found = f"<p>{escape(target['vllm'])}, polled every {target['scrape_interval']:.1f} s</p>"
    parts = [title, found, *(_model(model) for model in (target["requests"] or {"models": []})["models"])]
    return "".join([*parts, *(_engine(engine) for engine in target["engines"])])


def _model(model: Mapping[str, Any]) -> str:
    head = "<tr><th>temperature</th><th>verdict</th><th>acceptance</th><th>P10</th><th>P50</th><th>requests</th></tr>"
    rows = "".join(
        f"<tr><th>{escape(temperature)}</th><td>{escape(work['verdict'].replace('_', ' '))}</td>"
        + "".join(f'<td class="number">{_ratio(work[name])}</td>' for name in ("acceptance", "p10", "p50"))
        + f'<td class="number">{work["requests"]}</td></tr>'
        for temperature, work in model["temperatures"].items()
        if work["requests"]
    )
    coverage = f"<p>Coverage {_ratio(model['coverage'])}</p>"
    return f"<h3>{escape(model['model_name'])}, by temperature</h3><table>{head}{rows}</table>{coverage}"


def _engine(engine: Mapping[str, Any]) -> str:
    rows = [
        ("Acceptance rate", _ratio((engine["acceptance"] or {}).get("rate"))),
        ("Acceptance length", _number((engine["acceptance"] or {}).get("length"), "tokens a step")),
        ("KV cache in use (peak)", _ratio(engine["kv_cache_usage_peak"])),
    ]
    rows += [
        (f"{phase.upper()} P50 / P99", f"{_seconds(latency, '0.5')} / {_seconds(latency, '0.99')}")
        for phase, latency in engine["latency"].items()
    ]
    cells = "".join(f'<tr><th>{escape(name)}</th><td class="number">{value}</td></tr>' for name, value in rows)
    notes = "".join(f"<li>{escape(limitation['explanation'])}</li>" for limitation in engine["limitations"])
    return (
        f"<h3>{escape(engine['model_name'])} <small>engine {escape(engine['engine'])}</small></h3>"
        f"<table>{cells}</table>" + (f"<ul>{notes}</ul>" if notes else "")
    )


def _ratio(value: float | None) -> str:
    return "no data yet" if value is None else f"{value:.1%}"


def _number(value: float | None, unit: str) -> str:
    return "no data yet" if value is None else f"{value:.2f} {unit}"


def _seconds(latency: Mapping[str, Any], quantile: str) -> str:
    seconds: float = latency["quantiles"][quantile]
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
