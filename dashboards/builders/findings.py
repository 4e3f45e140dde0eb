"""Each finding in words.

Both pages show these in place of the codes, so that a reader sees the remedy without a click.
"""

from typing import Final

from dashboards.builders.query import copied, lately, relabelled, series
from dashboards.builders.tables import RUNBOOKS, Label
from sidecar.findings.catalog import BY_CODE

HELD: Final = f"{lately(series('finding'))} == 1"
_RUNBOOK: Final = f"{RUNBOOKS}/${{__data.fields.runbook}}.md"


def explained(expression: str) -> str:
    """Findings with the labels that ``columns`` shows.

    These are ``remedy``, which is in words as well, and the hidden ``runbook``.
    """
    expression = copied(expression, "remedy", "finding")
    for runbook in dict.fromkeys(words.runbook for words in BY_CODE.values()):
        codes = "|".join(code for code, words in BY_CODE.items() if words.runbook == runbook)
        expression = relabelled(expression, "runbook", runbook, "finding", codes)
    return expression


def columns(*, together: bool = False) -> list[Label]:
    """What a finding means and what to change, in two columns or ``together`` in one.

    The first column links to the runbook.
    """
    why = {code: words.why for code, words in BY_CODE.items()}
    remedy = {code: words.remedy for code, words in BY_CODE.items()}
    title, width = "Finding", 400

    if together:
        why = {code: f"{text}: {remedy[code]}" for code, text in why.items()}
        title, width = "Finding: what to change", 580

    return [
        Label("finding", _RUNBOOK, title=title, width=width, words=why),
        Label("remedy", title="What to change", words=remedy, hidden=together),
        Label("runbook", hidden=True),
    ]
