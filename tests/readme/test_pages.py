"""What the pages name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_a_page_names_is_there():
    named = {name for page in ROOT.glob("docs/*.md") for name in re.findall(r"`(tests/[\w/.-]+)`", page.read_text())}
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []
