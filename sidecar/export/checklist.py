"""The page's section on a model that does not speculate: would speculation suit it?"""

from html import escape

from sidecar.analysis.report import ModelReport
from sidecar.export.sections import marked, text_table, to_paste
from sidecar.wording.checklist import CandidateText, checklist_text


def checklist_section(model: ModelReport, said: str) -> str:
    """The conclusion, unless it is in ``said``, the lines, and what to try.

    Empty for a model that speculates.
    """
    if model.checklist is None:
        return ""

    text = checklist_text(model.checklist)
    conclusion = "" if text.conclusion in said else f"<p>{marked(text.conclusion)}</p>"
    table = text_table(("", *text.header[1:]), text.rows)
    candidates = "".join(f"<li>{_candidate(one)}</li>" for one in text.candidates)
    first = f'<h3>To try first</h3><ul class="notes">{candidates}</ul>' if candidates else ""

    title = f"{escape(model.model_name)}: would speculation suit it?"
    return f"<h2>{title}</h2>{conclusion}{table}{first}"


def _candidate(candidate: CandidateText) -> str:
    """A method, with what to paste."""
    name = f"<strong>{escape(candidate.method)}</strong>"
    return f"{name} {marked(candidate.why)}{to_paste(candidate.option)}"
