"""The runbooks that alerts link to, as pages: the pod's current numbers first, then ``alerts/runbooks/NAME.md``."""

import re
from collections.abc import Iterator
from html import escape
from textwrap import dedent
from typing import Final

from sidecar.export.declaration import Shown
from sidecar.export.page.answer import answer
from sidecar.export.page.hints import marked
from sidecar.export.page.page import content
from sidecar.shipped import shipped

_ITEM: Final = re.compile(r"(?:-|(\d+)\.) ")
_INLINE: Final = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(([^)]+)\)")
_THRESHOLD: Final = re.compile(r"`thresholds\.(\w+)`")


def names() -> list[str]:
    """The names of all runbooks, which are those of their alerts."""
    return sorted(path.stem for path in shipped("runbooks").glob("*.md"))


def runbook(name: str, shown: Shown) -> str | None:
    """The page of one alert below the pod's numbers; None if there is no such runbook. Reads files.

    Without a name it is a page that links to all.
    """
    if not name:
        items = "".join(f'<li><a href="{one}.md">{one}</a></li>' for one in names())
        return _page("Runbooks", f"<h1>Runbooks</h1><ul>{items}</ul>")
    if name not in names():
        return None
    text = (shipped("runbooks") / f"{name}.md").read_text(encoding="utf-8")
    return _page(name, _numbers(shown, _THRESHOLD.findall(text)) + render(text))


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


def _numbers(shown: Shown, thresholds: list[str]) -> str:
    """The answer and the thresholds that the text names; the rest of the page behind a click."""
    said, limits = answer(shown.report), shown.settings.thresholds.model_dump()
    named = ", ".join(f"thresholds.{name} {limits[name]:g}" for name in dict.fromkeys(thresholds) if name in limits)
    return (
        f'<details class="now"><summary>Now, at this pod: <b>{escape(said.text)}</b> {marked(said.why)} '
        f"<small>{named}</small></summary>{content(shown)}</details>"
    )


def _page(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="../static/style.css"></head>
<body><nav><a href="../">specdec-sidecar</a> · <a href="./">runbooks</a></nav><main>{body}</main></body></html>
"""
