"""The page at ``/`` as a user sees it, in a real browser, with trees built by hand."""

from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import TestServer

from sidecar.analysis.advice import Direction, TokensAdvice
from sidecar.analysis.judgement import Verdict
from sidecar.engine.names import Phase
from sidecar.errors import BadStatus
from sidecar.export.web import make_web
from sidecar.findings.number_of_tokens import NumberOfTokens
from sidecar.requests.messages import Speculation
from tests.analysis.test_checklist import GOOD as SUITS
from tests.analysis.test_checklist import LIGHT
from tests.export import reports
from tests.marks import slow

pytestmark = pytest.mark.servers

# What is folded, too, with spaces that no line breaks at as others.
TEXT = r"document.getElementById('content').textContent.replace(/\u00a0/g, ' ')"
GOOD = Verdict.NET_POSITIVE
EVEN = Verdict.BREAK_EVEN
BAD = Verdict.NET_NEGATIVE
NONE = Verdict.INSUFFICIENT_DATA
BUCKETS = ("0", GOOD, 0.82, 0.45), ("0.3-0.5", EVEN, 0.61, 0.17), ("0.7-1", BAD, 0.38, 0.38)


def mixed():
    """Hot traffic and long prompts lose."""
    rows = [_dated(reports.temperature(*bucket)) for bucket in BUCKETS]
    groups = (
        reports.group(
            "prompt_tokens", "8k-32k", 0.31, share=0.22, difference=reports.difference(0.31, 0.72)
        ),
    )
    medians = zip(Phase, (0.084, 0.021, 0.0131, 1.4, 0.013), strict=True)
    engine = reports.engine(
        acceptance=reports.window(0.65),
        latencies={phase: reports.latency(median) for phase, median in medians},
    )
    judged = reports.judgement(GOOD, 0.65)
    found = {
        "groups": groups,
        "judgement": judged,
        "engines": (engine,),
        "findings": (reports.STRUCTURED,),
    }
    return reports.report(reports.model(*rows, **found))


def _dated(row):
    """Judged so for an hour."""
    return replace(row, judgement=replace(row.judgement, since=reports.NOW - 4200))


def fast():
    """Everything pays, by time."""
    rows = (
        _dated(reports.timed("0", GOOD, 0.82, 30, 15, saved_seconds=9000.0)),
        _dated(reports.timed("0.7-1", GOOD, 0.6, 30, 22)),
    )
    return reports.report(reports.timed_model(*rows))


def greedy(verdict, rate, speculation=reports.EAGLE, *, has_collapsed=False, **changes):
    """All traffic is at temperature 0."""
    judged = reports.judgement(verdict, rate, speculation=speculation, has_collapsed=has_collapsed)
    row = reports.temperature("0", verdict, rate, 1.0, judgement=judged)
    engine = reports.engine(acceptance=reports.window(rate), speculation=speculation)
    return reports.report(reports.model(row, engines=(engine,), judgement=judged, **changes))


def without_plugin():
    engine = reports.engine(speculation=None, coverage=None)
    return reports.report(reports.model(engines=(engine,)), plugin=reports.NEVER_CONNECTED)


ADAPTIVE = Speculation("eagle3", 6, adaptive_verification=True)
LOSSY = Speculation("eagle3", 6, rejection_sample_method="fly")
STATES = (  # what the page says, and the name of its picture
    (
        mixed(),
        (
            "Not measured; by the rule of thumb, speculation does not pay at temperature 0.7-1,"
            " which has 38% of the draft tokens."
        ),
        "failing",
    ),
    (without_plugin(), "No plug-in has connected yet", "no-plugin"),
    (
        greedy(NONE, 0.17, ADAPTIVE),
        "The acceptance rate does not tell whether speculation pays here",
        "adaptive",
    ),
    (
        greedy(BAD, 0.01, has_collapsed=True),
        "Almost no draft tokens are accepted, and replies may be wrong.",
        "collapsed",
    ),
    (
        greedy(GOOD, 0.82, LOSSY),
        "part of the acceptance rate comes at the cost of quality",
        "lossy",
    ),
    (
        reports.report(scrape=reports.down(BadStatus(500))),
        "The sidecar cannot read vLLM's metrics.",
        "down",
    ),
)


@asynccontextmanager
async def served(report):
    """The page's address, and what it shows: ``site.report`` may change."""

    site = SimpleNamespace(report=report)
    async with TestServer(make_web(lambda: reports.with_hour(site.report), lambda: True)) as server:
        site.url = str(server.make_url("/"))
        yield site


@pytest.mark.slow
async def test_the_page_in_a_browser(browser, pictures):
    """One browser for all states, one document: it renews itself."""
    async with browser() as tab:
        async with served(fast()) as site:
            await tab.open(site.url)
            await tab.value("window.same = true")
            assert (
                "Speculation pays: per token, it saves 15 ms at T 0, 8 ms at T 0.7-1."
                in await tab.value(TEXT)
            )
            await tab.screenshot(pictures / "healthy.png")
            for report, sentence, name in STATES:
                site.report = report
                await tab.until(f"{TEXT}.includes({sentence!r})")
                await tab.screenshot(pictures / f"{name}.png")
            assert await tab.value("window.same") is True
            assert tab.complaints() == []
            assert {address.split("/")[2] for address in tab.requested()} == {
                site.url.split("/")[2]
            }
        await tab.until("document.getElementById('content').classList.contains('stale')")


# At each width of the page, in how many lines each name of a temperature stands.
OPEN = "for (const fold of document.querySelectorAll('details')) fold.open = true; 1"
LINES_OF_NAMES = r"""
(() => {
  const lines = [];
  for (let width = 200; width < 420; width += 3) {
    document.body.style.width = `${width}px`;
    const content = document.getElementById('content');
    const texts = document.createTreeWalker(content, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
      for (const name of texts.currentNode.data.matchAll(/0\.\d-[\d.]*\d/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, name.index);
        range.setEnd(texts.currentNode, name.index + name[0].length);
        lines.push(new Set([...range.getClientRects()].map(box => box.top)).size);
      }
  }
  return lines;
})()
"""


async def test_a_phone_in_the_dark_shows_all_and_breaks_no_line_within_the_name_of_a_temperature(
    browser, pictures
):
    """In the headline, in the reason for it, and in each temperature's own row."""
    async with served(mixed()) as site, browser() as tab:
        await tab.open(site.url, width=390, height=844, dark=True)
        assert await tab.value("document.querySelectorAll('.bucket').length") == 4
        await tab.screenshot(pictures / "phone.png")
        await tab.value(OPEN)
        assert await tab.value("document.documentElement.scrollWidth <= window.innerWidth")
        lines = await tab.value(LINES_OF_NAMES)
        assert len(lines) == 74 * 5
        assert set(lines) == {1}


async def test_a_checklist_fits_a_phone(browser):
    async with served(reports.report(reports.plain_model(SUITS, LIGHT))) as site, browser() as tab:
        await tab.open(site.url, width=390, height=844)
        fits = "document.querySelector('.checklist').scrollWidth <= document.body.clientWidth"
        assert await tab.value(fits)
        assert await tab.value("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.slow
async def test_what_is_drawn_in_the_rows_is_said_above_them(browser):
    """The axis of the speedups or, without one, the marks of the rule of thumb."""
    heads = (
        "[...document.querySelectorAll('.heads')].map(e => e.innerText.split(/\\s*\\n/).join(' '))"
    )
    async with served(fast()) as site, browser() as tab:
        await tab.open(site.url)
        assert await tab.value(heads) == ["last hour 0.5 1 2"]
    async with served(mixed()) as site, browser() as tab:
        await tab.open(site.url)
        [said] = await tab.value(heads)
        assert said == "last hour rule of thumb: 50%, 65% requests by acceptance rate"


@pytest.mark.slow
async def test_what_to_do_about_a_fault_is_in_the_box_of_the_remedies(browser):
    judged = reports.judgement(BAD, 0.01, has_collapsed=True)
    collapsed = reports.model(reports.temperature("0", BAD, 0.01, 1.0), judgement=judged)
    async with served(reports.report(collapsed)) as site, browser() as tab:
        await tab.open(site.url)
        assert "take the pod out of traffic" in await tab.value(
            "document.querySelector('.fix').innerText"
        )


@pytest.mark.slow
async def test_a_fold_stays_open_while_the_page_renews_itself(browser):
    async with served(mixed()) as site, browser() as tab:
        await tab.open(site.url)
        opened = "document.querySelector('details[data-fold=measured]')"
        assert await tab.value(f"{opened}.open") is False
        await tab.value(f"{opened}.open = true; {opened}.id = 'before'; 1")
        await tab.until("!document.getElementById('before')")
        assert await tab.value(f"{opened}.open") is True


async def test_a_click_copies_the_whole_configuration(browser, pictures):
    """Also under the page's own security policy; and a wide configuration overflows no card."""
    how = replace(reports.EAGLE, options='{"method": "eagle3", "model": "/models/%s"}' % ("m" * 80))
    fewer = TokensAdvice(direction=Direction.FEWER, now=5, best=2, acceptance=0.3, next_rate=0.3)
    model = reports.model(
        reports.temperature("0"),
        engines=(reports.engine(speculation=how),),
        findings=(NumberOfTokens(code="too_many_tokens", tokens=fewer),),
    )
    async with served(reports.report(model)) as site, browser() as tab:
        await tab.open(site.url, width=1280, height=900)
        await tab.value("navigator.clipboard.writeText = async text => { window.copied = text }; 1")
        await tab.value("document.querySelector('.paste button').click(); 1")
        await tab.until("window.copied === document.querySelector('.paste code').textContent")
        await tab.screenshot(pictures / "paste.png")

        assert await tab.value("document.documentElement.scrollWidth <= window.innerWidth")
        assert tab.complaints() == []


@pytest.mark.slow
async def test_a_latency_stays_on_its_line_within_its_panel(browser):
    bounds = reports.by_bucket(*[(0.1, 0.15)] * 4)
    latencies = {Phase.TTFT: reports.latency(10.0), Phase.QUEUE: bounds}
    model = reports.model(engines=(reports.engine(latencies=latencies),))
    async with served(reports.report(model)) as site, browser() as tab:
        await tab.open(site.url)
        await tab.value(OPEN)
        heights = "[...document.querySelectorAll('.panel tr + tr')].map(row => row.offsetHeight)"
        assert await tab.value(f"{heights}.length") == 2
        assert await tab.value(f"new Set({heights}).size") == 1
        assert await tab.value(f"{heights}[0]") > 0
        panels = "[...document.querySelectorAll('.panel')]"
        assert await tab.value(f"{panels}.every(panel => panel.scrollWidth <= panel.clientWidth)")


OLD = "getComputedStyle(document.querySelector('.clock'), '::after').visibility"
FADED = "getComputedStyle(document.querySelector('.answer')).opacity"


@pytest.mark.parametrize("has_script", [True, slow(False)])
async def test_a_page_that_is_not_renewed_looks_old(browser, has_script):
    """Also without script, where nothing but the style sheet tells."""
    async with browser() as tab:
        await tab.call("Emulation.setScriptExecutionDisabled", value=not has_script)
        async with served(fast()) as site:
            await tab.open(site.url)
            assert await tab.value(FADED) == "1"
            assert await tab.value(OLD) == "hidden"
            if has_script:
                await tab.until("document.querySelector('.clock').textContent.endsWith(' s ago')")
        if not has_script:  # a reload would come before that
            later = "document.getAnimations().forEach(each => { each.currentTime = 46_000; }); 1"
            await tab.value(later)
        await tab.until(f"{FADED} === '0.45' && {OLD} === 'visible'")


async def test_few_words_are_visible_before_a_click(browser):
    """Whoever looks for the answer does not read; who asks finds the rest in the folds."""
    words = r"document.body.innerText.split(/\s+/).length"
    async with served(mixed()) as site, browser() as tab:
        await tab.open(site.url, width=1280, height=800)
        visible = await tab.value(words)
        await tab.value(OPEN)

        assert visible < 285
        assert await tab.value(words) > 2 * visible
