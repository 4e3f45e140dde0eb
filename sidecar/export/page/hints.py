"""Hints for the user: the state of the plug-in, and what vLLM does not export."""

import re
from collections.abc import Iterator
from html import escape

from sidecar.analysis.report import Report
from sidecar.analysis.split.plugin_state import PluginReport
from sidecar.wording.notes import limitation_notes, no_speedup_sentence
from sidecar.wording.numbers import counted
from sidecar.wording.plugin import plugin_sentence


def plugin_line(plugin: PluginReport, said: str) -> str:
    """The state of the plug-in, unless ``said`` already contains it, and the versions that are connected."""
    versions = ", ".join(dict.fromkeys(f"plug-in {one.version} in vLLM {one.vllm_version}" for one in plugin.engines))
    small = f" <small>{escape(versions)}</small>" if versions else ""
    sentence = plugin_sentence(plugin)
    return f'<p class="plugin {plugin.state}">{marked(sentence) if sentence not in said else ""}{small}</p>'


def hints_section(report: Report) -> str:
    """The hints as a list; empty if there are none."""
    notes = "".join(f"<li>{marked(note)}</li>" for note in dict.fromkeys(_hints(report)))
    return f'<h2>Hints</h2><ul class="notes">{notes}</ul>' if notes else ""


def _hints(report: Report) -> Iterator[str]:
    for model in report.models:
        if sentence := no_speedup_sentence(model):
            yield sentence
    for reason, count in report.plugin.dropped.items():
        if count:
            yield f"The sidecar dropped {counted(count, 'message')} from the plug-in: `{reason}`."
    for model in report.models:
        for engine in model.engines:
            yield from limitation_notes(engine)


def marked(note: str) -> str:
    """Marks text in backticks as code, and ranges such as 0.7-1, so that no line breaks at their hyphens."""
    coded = re.sub("`([^`]+)`", r"<code>\1</code>", escape(note))
    return re.sub(r"\d[\w.]*-\d[\w.]*", r"<span class=number>\g<0></span>", coded)
