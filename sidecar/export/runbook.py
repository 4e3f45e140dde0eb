"""The runbooks that alerts link to, as pages: the pod's current numbers first, then ``alerts/runbooks/NAME.md``."""

import re
from collections.abc import Iterator, Mapping
from html import escape
from textwrap import dedent
from typing import Any, Final

from sidecar.shipped import shipped

_ITEM: Final = re.compile(r"(?:-|(\d+)\.) ")
_INLINE: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(([^)]+)\)")
_THRESHOLD: Final = re.compile(r"`thresholds\.(\w+)`")


def names() -> list[str]:
    """The names of all runbooks, which are those of their alerts."""
    return sorted(path.stem for path in shipped("runbooks").glob("*.md"))


def index() -> str:
    """A page that links to all runbooks."""
    items = "".join(f'<li><a href="{name}.md">{name}</a></li>' for name in names())
    return _page("Runbooks", f"<h1>Runbooks</h1><ul>{items}</ul>")


def runbook(name: str, status: Mapping[str, Any]) -> str | None:
    """The page of one alert with the numbers of ``status``; None if there is no such runbook. Reads a file."""
    if name not in names():
        return None
    text = (shipped("runbooks") / f"{name}.md").read_text(encoding="utf-8")
    return _page(name, _numbers(status, _THRESHOLD.findall(text)) + render(text))


def render(text: str) -> str:
    """Markdown as the runbooks use it: headings, lists, code and paragraphs, separated by blank lines.

    A link to a file that is not served beside the page becomes text.
    """
    return "\n".join(map(_block, re.split(r"\n{2,}", text.strip("\n"))))


def _block(block: str) -> str:
    if heading := re.match(r"(#+) (.+)", block):
        level = len(heading[1])
        return f"<h{level}>{_inline(heading[2])}</h{level}>"
    if block.startswith("```"):
        return f"<pre>{escape(block.partition(chr(10))[2].removesuffix('```'))}</pre>"
    if block.startswith("    "):
        return f"<pre>{escape(dedent(block))}</pre>"
    if first := _ITEM.match(block):
        items = "".join(f"<li>{_inline(item)}</li>" for item in _items(block))
        return f'<ol start="{first[1]}">{items}</ol>' if first[1] else f"<ul>{items}</ul>"
    return f"<p>{_inline(block)}</p>"


def _items(block: str) -> Iterator[str]:
    item = ""
    for line in block.split("\n"):
        if marker := _ITEM.match(line):
            if item:
                yield item
            item = line[marker.end() :]
        else:
            item += f"\n{line.strip()}"
    yield item


def _inline(text: str) -> str:
    return _INLINE.sub(_span, escape(text, quote=False))


def _span(match: re.Match[str]) -> str:
    code, strong, emphasis, label, target = match.groups()
    if code:
        return f"<code>{code}</code>"
    if strong or emphasis:
        return f"<b>{_INLINE.sub(_span, strong)}</b>" if strong else f"<i>{emphasis}</i>"
    served = "/" not in target
    return (
        f'<a href="{target}">{label}</a>' if served else f"{label} ({target.removeprefix('../').removeprefix('../')})"
    )


def _numbers(status: Mapping[str, Any], thresholds: list[str]) -> str:
    rows = [row for target in status["targets"] for row in _target_rows(target)]
    rows += [
        (f"thresholds.{name}", f"{status['thresholds'][name]:g}")
        for name in dict.fromkeys(thresholds)
        if name in status["thresholds"]
    ]
    cells = "".join(f"<tr><th>{escape(name)}</th><td class='number'>{escape(value)}</td></tr>" for name, value in rows)
    return f"<h2>Now, at this pod</h2><table>{cells}</table><p><a href='../'>All of its numbers</a></p>"


def _target_rows(target: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    fault = (target["last_error"] or {}).get("message", "")
    yield target["name"], "vLLM answers" if target["up"] else f"vLLM's page cannot be read: {fault}"
    yield "restarts of vLLM seen", str(target["restarts"])
    for model in target["models"]:
        yield f"{model['model_name']}: acceptance", f"{_share(model['acceptance'])} ({model['verdict']})"
    requests = target["requests"] or {"models": []}
    for model in requests["models"]:
        for temperature, bucket in model["temperatures"].items():
            if bucket["draft_tokens"]:
                name = f"{model['model_name']} at temperature {temperature}: acceptance"
                yield name, f"{_share(bucket['acceptance'])} ({bucket['verdict']})"
    for engine in target["engines"]:
        yield from _engine_rows(engine)


def _engine_rows(engine: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    where = f"{engine['model_name']}, engine {engine['engine']}: "
    yield where + "KV cache in use, peak", _share(engine["kv_cache_usage_peak"])
    gauges = engine["gauges"]
    for name in ("requests_running", "requests_waiting", "waiting_for_capacity"):
        if name in gauges:
            yield where + name.replace("_", " "), f"{gauges[name]:g}"
    if tpot := engine["latency"].get("tpot"):
        p50, p99 = (1000 * tpot["quantiles"][quantile] for quantile in ("0.5", "0.99"))
        yield where + "time per output token, P50 and P99", f"{p50:.3g} ms and {p99:.3g} ms"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _page(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="../static/style.css"></head>
<body><nav><a href="../">specdec-sidecar</a> · <a href="./">runbooks</a></nav><main>{body}</main></body></html>
"""
