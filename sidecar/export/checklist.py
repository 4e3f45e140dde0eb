"""The page's section on a model that does not speculate: would speculation suit it?"""

from collections.abc import Sequence
from html import escape
from typing import Final

from sidecar.analysis.checklist.checklist import Checklist, Stance
from sidecar.analysis.report import ModelReport
from sidecar.export.sections import marked, to_paste, wide_table
from sidecar.wording.checklist import CandidateText, ChecklistText, checklist_text

# Classes in the style sheet.
_TONES: Final = {
    Stance.FOR: "good",
    Stance.AGAINST: "bad",
    Stance.UNDECIDED: "even",
    Stance.UNKNOWN: "mute",
}


def checklist_section(model: ModelReport, said: str) -> str:
    """The conclusion, unless it is in ``said``, the lines, and what to try.

    Empty for a model that speculates.
    """
    if model.checklist is None:
        return ""

    text = checklist_text(model.checklist)
    conclusion = "" if text.conclusion in said else f"<p>{marked(text.conclusion)}</p>"
    candidates = "".join(f"<li>{_candidate(one)}</li>" for one in text.candidates)
    first = f'<h3>To try first</h3><ul class="notes">{candidates}</ul>' if candidates else ""

    title = f"{escape(model.model_name)}: would speculation suit it?"
    return f"<h2>{title}</h2>{conclusion}{_table(model.model_name, model.checklist, text)}{first}"


def _table(model_name: str, checklist: Checklist, text: ChecklistText) -> str:
    """A row for each line; its colour is what the line says."""
    header = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in text.header)}</tr>"
    rows = [
        _row(cells, _TONES[line.stance])
        for line, cells in zip(checklist.lines, text.rows, strict=True)
    ]
    table = f'<table class="checklist">{header}{"".join(rows)}</table>'
    return wide_table(f"conditions of {model_name}", table)


def _row(cells: Sequence[str], tone: str) -> str:
    name, says, *numbers = map(escape, cells)
    others = "".join(f"<td>{number}</td>" for number in numbers)
    return f'<tr class="{tone}"><td>{name}</td><td class="verdict">{says}</td>{others}</tr>'


def _candidate(candidate: CandidateText) -> str:
    """A method, with what to paste."""
    name = f"<strong>{escape(candidate.method)}</strong>"
    return f"{name} {marked(candidate.why)}{to_paste(candidate.option)}"
