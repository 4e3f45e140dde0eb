"""The runbooks that alerts link to, as pages: the pod's current numbers first, then ``alerts/runbooks/NAME.md``."""

import re
from html import escape
from typing import Final

from sidecar.export.declaration import Shown
from sidecar.export.page.answer import answer
from sidecar.export.page.hints import marked
from sidecar.export.page.page import content
from sidecar.shipped import shipped

_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_WRAPPED: Final = re.compile(r"(?<=\S)\n {0,3}(?![\s#|]|- |\d+\. )")
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
    """The Markdown as it is written, without the ends of lines within a paragraph, and with links that work.

    A link to a file that is not served here stays text.
    """
    parts = escape(text, quote=False).split("```")  # text, code, text, …
    parts[::2] = [_LINK.sub(_link, _WRAPPED.sub(" ", part)) for part in parts[::2]]
    return f'<pre class="runbook">{"```".join(parts)}</pre>'


def _link(match: re.Match[str]) -> str:
    label, target = match.groups()
    return match[0] if "/" in target else f'<a href="{target}">{label}</a>'


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
