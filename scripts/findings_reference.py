"""Writes what pages say of all findings, from their words.

``docs/why.md`` has a table of them, and each runbook a list of those whose remedy it has.

Usage: findings_reference.py
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.findings.catalog import BY_CODE

_ROOT: Final = Path(__file__).resolve().parent.parent
_WHY: Final = _ROOT / "docs" / "why.md"
_RUNBOOKS: Final = _ROOT / "alerts" / "runbooks"
_TABLE: Final = "| finding | what it is | what to change | runbook |\n"
_LEAD_HERE: Final = "\n### Findings that lead here\n"


def why_page(page: str) -> str:
    """``docs/why.md`` with the rows of its table, and otherwise unchanged.

    Raises:
        ValueError: the table is missing.
    """
    start = page.index(_TABLE)
    rest = re.sub(r"\A(\|.*\n)*", "", page[start:])
    return f"{page[:start]}{_TABLE}|---|---|---|---|\n{''.join(_rows())}{rest}"


def _rows() -> Iterator[str]:
    for code, words in BY_CODE.items():
        name = words.runbook.removeprefix("SpecDecode")
        link = f"[{name}](../alerts/runbooks/{words.runbook}.md)"
        yield f"| `{code}` | {words.why} | {words.remedy} | {link} |\n"


def runbook_page(page: str, name: str) -> str:
    """The runbook ``name`` with the list of its findings at its end, and otherwise unchanged."""
    before, _, _ = page.partition(_LEAD_HERE)
    return f"{before}{_lead_to(name)}"


def _lead_to(runbook: str) -> str:
    lines = [
        f"- `{code}`: {words.why}. Remedy: {words.remedy}.\n"
        for code, words in BY_CODE.items()
        if words.runbook == runbook
    ]
    return f"{_LEAD_HERE}\n{''.join(lines)}" if lines else ""


def main() -> None:
    """Writes the pages."""
    _WHY.write_text(why_page(_WHY.read_text(encoding="utf-8")), encoding="utf-8")
    for path in sorted(_RUNBOOKS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        path.write_text(runbook_page(page, path.stem), encoding="utf-8")


if __name__ == "__main__":
    main()
