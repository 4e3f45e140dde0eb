"""The page, and the part of it that the script refreshes every two seconds."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from sidecar import __version__
from sidecar.analysis.report import Report
from sidecar.analysis.split.lives import OTHER_ENGINE
from sidecar.analysis.split.plugin_state import PluginReport, PluginState
from sidecar.export.checklist import checklist_section
from sidecar.export.declaration import ReportView
from sidecar.export.sections import fold, marked, model_section
from sidecar.wording.answer import answer
from sidecar.wording.notes import hints
from sidecar.wording.numbers import counted
from sidecar.wording.plugin import plugin_sentence
from sidecar.wording.speed import baseline_sentence
from sidecar.wording.tables import LEGEND

# The page loads nothing from elsewhere, and only the sidecar's own script can run in it.
SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'"
)
STATIC = {"style.css": "text/css", "live.js": "text/javascript"}
_RECOVERS = "Totals recover with the next one; only single requests are missing."
_DROPPED = {
    OTHER_ENGINE: "After a restart of vLLM these are the last ones from before it; else another"
    " vLLM sends to this sidecar's socket."
}


def plugin_line(plugin: PluginReport, said: str, *, is_up: bool) -> str:
    """The state of the plug-in, unless ``said`` already contains it, and the connected versions.

    ``is_up``: whether vLLM answers.
    """
    versions = ", ".join(
        dict.fromkeys(f"plug-in {one.version} in vLLM {one.vllm_version}" for one in plugin.engines)
    )
    small = f" <small>{escape(versions)}</small>" if versions else ""
    sentence = plugin_sentence(plugin, is_up=is_up)
    state = "" if sentence in said else marked(sentence)
    return f'<p class="plugin {plugin.state}">{state}{small}</p>'


def settings_line(invalid: Sequence[str]) -> str:
    """What is wrong with the settings; empty if nothing is."""
    if not invalid:
        return ""
    lines = "".join(f"<br>{escape(problem)}" for problem in invalid)
    return (
        f'<p class="plugin disabled">{counted(len(invalid), "setting")} invalid, so the default or'
        f" the previous value is in force:{lines}</p>"
    )


def hints_section(report: Report) -> str:
    """The hints as a list; empty if there are none."""
    found = [hint for model in report.models for hint in hints(model)]
    for reason, count in report.plugin.dropped.items():
        if count:
            found.append(
                f"The sidecar dropped {counted(count, 'message')} from the plug-in: `{reason}`."
                f" {_DROPPED.get(reason, _RECOVERS)}"
            )
    notes = "".join(f"<li>{marked(note)}</li>" for note in dict.fromkeys(found))
    return fold(
        "hints", "What is missing, and why", f'<ul class="notes">{notes}</ul>' if notes else ""
    )


def _measured(report: Report) -> str:
    """The words of the page, and each model's baseline."""
    baselines = [
        f"{model.model_name}: {baseline_sentence(model.plain_steps, report.at)}"
        for model in report.models
        if model.plain_steps is not None
    ]
    return "".join(f'<p class="facts">{escape(line)}</p>' for line in (LEGEND, *baselines))


def page(shown: ReportView) -> str:
    """The whole page."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Does speculation pay?</title>
<meta name="viewport" content="width=device-width, initial-scale=1">\
<link rel="stylesheet" href="static/style.css">
<noscript><meta http-equiv="refresh" content="30"></noscript>\
<script src="static/live.js" defer></script></head><body>
<header><h1>specdec-sidecar <small>{__version__}</small></h1>
<nav><a href="metrics">metrics</a> · <a href="api/v1/status">status</a> · \
<a href="runbooks">runbooks</a></nav>
</header><main id="content">{content(shown)}</main></body></html>
"""


def content(shown: ReportView) -> str:
    """The part of the page that changes: the answer, each model, then what is missing."""
    report = shown.report
    said = answer(report)
    observed = plugin_line(report.plugin, said.why, is_up=report.scrape.up)
    has_rows = report.scrape.up and any(model.temperatures for model in report.models)
    why = said.why_beside_rows if has_rows else said.why
    is_usual = report.scrape.up and report.plugin.state is PluginState.OBSERVING
    parts = [
        f'<p class="answer {said.tone}">{marked(said.text)}</p>',
        _clock(report, said.since),
        f'<p class="why{" fix" if said.is_fault else ""}">{marked(why)}</p>' if why else "",
        "" if is_usual else observed,
        settings_line(report.own.invalid_settings),
    ]

    if report.scrape.up:
        # That of the answer comes first: its remedy is to be under the answer.
        for model in sorted(report.models, key=lambda one: one.model_name != said.model_name):
            is_about = said.model_name in (None, model.model_name)
            above = f"{said.why if is_about else ''} {plugin_sentence(report.plugin)}"
            parts.append(model_section(model, shown, above))
            parts.append(checklist_section(model, above))
        parts.append(hints_section(report))
        parts.append(fold("measured", "How this was measured", _measured(report)))
        parts.append(observed if is_usual else "")

    return "".join(parts)


def _clock(report: Report, since: str) -> str:
    """Since when the answer holds, and of which moment the page is.

    The script says how long ago that was; the style sheet, that the page has not renewed itself.
    """
    at = report.at
    if report.scrape.up and report.scrape.last_scrape is not None:
        at = report.scrape.last_scrape
    moment = datetime.fromtimestamp(at, UTC)
    return (
        f'<p class="clock">{escape(since)} As of <time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}"'
        f' data-age="{max(report.at - at, 0.0):.1f}">{moment:%H:%M:%S} UTC</time><span></span></p>'
    )


def static(name: str) -> bytes:
    """A file of the page; ``name`` is a key of ``STATIC``."""
    return files(__package__).joinpath("static", name).read_bytes()
