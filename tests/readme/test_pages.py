"""What the pages name and link to."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# that these pages name paths from
ROOTS = [ROOT, ROOT / "sidecar", ROOT / "sidecar" / "analysis"]
PAGES = {
    path: path.read_text()
    for folder in ("docs", "deploy", "alerts", "lab", "dashboards")
    for path in ROOT.glob(f"{folder}/**/*.md")
}
PAGES |= {path: path.read_text() for path in ROOT.glob("*.md")}


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_test_that_a_page_names_exists():
    named = {name for path in PAGES for name in re.findall(r"`(tests/[\w/.-]+)`", PAGES[path])}
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_file_that_the_map_of_the_code_names_exists():
    pages = ("architecture.md", "changing.md", "words.md")
    text = "\n".join(PAGES[ROOT / "docs" / name] for name in pages)
    named = re.findall(r"`([a-z_]+/[\w/.]+\.(?:py|yaml))`", text)
    assert len(named) > 30
    named.remove("specdec_tools/commands/NAME.py")
    assert [name for name in named if not any((root / name).exists() for root in ROOTS)] == []


def test_every_link_between_pages_leads_somewhere():
    links = [
        (path, link)
        for path, text in PAGES.items()
        for link in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", text)
    ]
    assert len(links) > 100
    for path, link in links:
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), (path, link)
        assert not anchor or anchor in anchors(target.read_text()), (path, link)
