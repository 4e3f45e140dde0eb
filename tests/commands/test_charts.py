"""The pages of sweep and compare, in a real Chromium."""

import base64

import pytest

from sidecar.commands.charts import Chart, Point, Series, page
from sidecar.commands.sweep.results import load
from tests.commands.commands_tools import command
from tests.commands.sweep.sweep_tools import simulated
from tests.export.page.conftest import browser  # noqa: F401 - a fixture

OVERLAPPING = """
(() => {
  const texts = [...document.querySelectorAll("figure > svg text")].map((one) => one.getBoundingClientRect());
  const meets = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return texts.filter((one, i) => texts.some((other, j) => i < j && meets(one, other))).length;
})()
"""
OUTSIDE = """
[...document.querySelectorAll("figure > svg")].filter((svg) => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("circle, text")].some((one) => {
    const box = one.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
  });
}).length
"""


@pytest.fixture
async def sweeps(finished, tmp_path):
    """Two sweeps with a baseline, as files; the first one's page too."""
    async with simulated() as vllm, simulated(num_speculative_tokens=0) as plain:
        asked = (
            "--temperatures",
            "0,1",
            "--concurrency",
            "1,4",
            "--requests",
            "4",
            "--rounds",
            "2",
            "--max-tokens",
            "16",
        )
        for name in ("a", "b"):
            files = ("--save", str(tmp_path / f"{name}.json"), "--html", str(tmp_path / f"{name}.html"))
            servers = ("--url", vllm.url, "--baseline-url", plain.url, "--max-tokens", "16")
            code, _, err = await finished("sweep", *servers, *asked, *files)
            assert code == 0, err
    return tmp_path


async def opened(tab, path, **options):
    await tab.open(path.as_uri(), **options)
    assert await tab.value(OVERLAPPING) == 0
    assert await tab.value(OUTSIDE) == 0
    assert tab.complaints() == []
    assert [url for url in tab.requested() if not url.startswith("file:")] == []
    return await tab.value("[...document.querySelectorAll('h2')].map((one) => one.textContent)")


@pytest.mark.servers
async def test_the_pages_show_their_curves(sweeps, browser, capsys):  # noqa: F811 - the fixture
    pair = (str(sweeps / "a.json"), str(sweeps / "b.json"))
    assert command("compare", *pair, "--html", str(sweeps / "compare.html")) == 0
    assert capsys.readouterr().out
    async with browser() as tab:
        titles = await opened(tab, sweeps / "a.html")
        assert titles == [
            *("TPOT at the median, by load", "TPOT at P99, by load"),
            *("Speedup, by load (above 1 speculation is faster)", "Acceptance by draft position"),
        ]
        dots = "document.querySelectorAll('figure:nth-of-type({}) circle').length"
        assert [await tab.value(dots.format(number)) for number in (1, 2, 3, 4)] == [8, 4, 4, 6]
        highest = max(level.speedup for level in load(sweeps / "a.json").levels)
        shown = await tab.value(
            "[...document.querySelectorAll('figure:nth-of-type(3) circle title')].map(t => t.textContent)"
        )
        assert any(text.endswith(f": {highest:.4g}") for text in shown)
        await tab.screenshot(sweeps / "sweep.png")
        assert (
            len(await opened(tab, sweeps / "compare.html", width=390, dark=True)) == 2
        )  # two rounds tell no error, so no ratio
        assert await tab.value("document.documentElement.scrollWidth <= 390")
        await tab.screenshot(sweeps / "compare.png")
    assert (sweeps / "sweep.png").read_bytes()[:4] == base64.b64decode("iVBORw==")


def test_names_are_escaped_and_empty_charts_are_left_out():
    chart = Chart(title="<b>", x_title="x", y_title="y", series=(Series("<i>", (Point("<u>", 1.0),)),))
    empty = Chart(title="nothing", x_title="x", y_title="y", series=(Series("one", ()),))
    found = page("<t>", ["<p1>"], [chart, empty], ["<pre1>"])
    for name in ("<b>", "<i>", "<u>", "<t>", "<p1>", "<pre1>", "nothing", "<script"):
        assert name not in found


@pytest.mark.parametrize("values", [(0.0,), (1e-9, 2e-9), (3.0, 1e6)])
def test_any_values_stay_within_the_picture(values):
    points = tuple(Point(str(number), value) for number, value in enumerate(values))
    found = page("t", [], [Chart(title="c", x_title="x", y_title="y", series=(Series("s", points),))], [])
    assert "nan" not in found
    assert found.count("<circle") == len(values)
