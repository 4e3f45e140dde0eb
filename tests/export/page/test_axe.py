"""The page by axe-core in a real browser: names, roles and contrast, light and dark.

axe-core comes from npm (`scripts/axe`).
"""

import subprocess
from pathlib import Path

import pytest

from tests.export import reports
from tests.export.page.pictures import served
from tests.export.page.states import STATES as PLAYED
from tests.export.page.test_page import OPEN, STATES, fast

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
CHECK = """
axe.run(document, {resultTypes: ['violations']}).then(
  found => found.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 120))]))
"""


@pytest.fixture(scope="module")
def axe():
    """The library's source."""
    script = ROOT / "scripts" / "axe"
    return subprocess.run([script], capture_output=True, text=True, check=True).stdout


async def test_axe_finds_no_violation(browser, axe):
    """Folded and open, in each state of the page; of those that take long to play, in two."""
    built = (fast(), *(report for report, *_ in STATES))
    played = [PLAYED[name].shown() for name in ("several-models", "after-a-change")]
    found = []
    async with browser() as tab:
        for shown in (*map(reports.with_hour, built), *played):
            async with served(shown) as url:
                for width, dark in ((1280, False), (390, True)):
                    await tab.open(url, width=width, dark=dark)
                    await tab.value(f"{axe}; 1")
                    for opening in ("1", OPEN):
                        await tab.value(opening)
                        found += await tab.value(CHECK)

    assert found == []
