"""The sidecar's own pages over HTTP."""

import json
import re
import weakref
from dataclasses import replace
from urllib.parse import urljoin

import pytest
from aiohttp.test_utils import TestClient, TestServer

from sidecar.analysis.engine.health import Ailing, Ailment, HealthReport
from sidecar.analysis.judgement import Verdict
from sidecar.engine.layout import EngineKey
from sidecar.export.web import PageCache, make_web
from sidecar.shipped import shipped
from tests.export import reports


@pytest.fixture
async def site():
    """Fetches a path: status, headers and text; ``site.pages`` says what there is."""

    class Site:
        report = reports.report(
            reports.model(reports.temperature("0.7-1", Verdict.NET_NEGATIVE, 0.3))
        )
        ready = False
        vllm_page = b""

        async def get(self, path, **headers):
            async with client.get(path, allow_redirects=False, headers=headers) as response:
                return response.status, response.headers, await response.text()

    site = Site()
    app = make_web(
        lambda: reports.shown(site.report), lambda: site.ready, vllm_page=lambda: site.vllm_page
    )
    async with TestClient(TestServer(app)) as client:
        yield site


async def test_readiness_follows_the_first_poll_and_health_does_not(site):
    """A vLLM that is down is no reason to restart the sidecar."""
    assert (await site.get("/-/healthy"))[0] == 200
    assert (await site.get("/-/ready"))[0] == 503
    site.ready = True
    assert (await site.get("/-/ready"))[0] == 200


async def test_the_engine_s_probe_fails_only_for_an_ailing_engine(site):
    """What is unknown is healthy, and so is an engine that restarts have not helped."""
    stalled = Ailing(EngineKey("demo", "0"), Ailment.STALLED, 1_800_000_000.0)

    async def answer(**health):
        site.report = replace(site.report, health=HealthReport(**health))
        status, _, text = await site.get("/-/engine")
        return status, text

    assert await answer() == (200, "healthy\n")
    assert await answer(ailing=(stalled,), most_restarts=2) == (
        503,
        "unhealthy: engine 0 has been stalled since 08:00:00 UTC\n",
    )
    status, text = await answer(ailing=(stalled,), restarts=2, most_restarts=2)
    assert status == 200
    assert text.startswith("left alone: engine 0 has been stalled")


async def test_metrics_status_and_page_say_the_same(site):
    """All three are made of one report."""
    _, headers, metrics = await site.get("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert (
        'specdec_verdict{model_name="demo",temperature="0.7-1",verdict="net_negative"} 1.0'
        in metrics
    )
    status = json.loads((await site.get("/api/v1/status"))[2])
    assert status["models"][0]["temperatures"][0]["judgement"]["verdict"] == "net_negative"
    _, headers, page = await site.get("/")
    text = re.sub("<[^>]+>", "", page)
    assert "low acceptance, not measured" in text
    assert status["answer"]["text"] in text
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    content = (await site.get("/content"))[2]
    assert content in page


async def test_the_page_s_files(site):
    for name, kind in (("style.css", "text/css"), ("live.js", "text/javascript")):
        status, headers, _ = await site.get(f"/static/{name}")
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")


async def test_every_runbook_is_served_as_it_is(site):
    below = (await site.get("/runbooks/"))[2]
    _, headers, index = await site.get("/runbooks")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    for path in shipped("runbooks").iterdir():
        assert f'href="runbooks/{path.name}"' in index
        assert f'href="{path.name}"' in below
        status, headers, text = await site.get(f"/runbooks/{path.name}")
        assert (status, headers["Content-Type"], text) == (
            200,
            "text/plain; charset=utf-8",
            path.read_text(),
        )
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert (await site.get(urljoin(f"/runbooks/{path.name}", target)))[0] == 200, target


async def test_the_page_links_to_what_is_promised_of_the_text(site):
    """The verdict is on the speed."""
    href = re.search(r'<a href="([^"]+)">Is it still what the model', (await site.get("/"))[2])
    status, headers, text = await site.get(urljoin("/", href[1]))

    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert text.startswith("# Is the text still the target's?")


async def test_the_page_on_fidelity_links_to_nothing_that_is_not_here(site):
    """What it links to is named, with its path in the source."""
    status, headers, text = await site.get("/docs/fidelity.md")

    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert "What it said of a real vLLM (see docs/measurements/fidelity.md in the source)" in text
    assert re.findall(r"\]\((?!https?://)", text) == []


@pytest.mark.parametrize(
    "path", ["/runbooks/SpecDecodeNothing.md", "/runbooks/..%2Fpyproject.toml", "/nothing"]
)
async def test_anything_else_is_not_found(site, path):
    assert (await site.get(path))[0] == 404


async def test_re_exported_names_are_vllms_own_in_whatever_format_is_asked_for(site, recorded):
    """Text 0.0.4 is the format of vLLM's page, whose lines are taken over as they are."""
    site.vllm_page = recorded("vllm-0.33.0.prom")
    for version in (
        "application/openmetrics-text;version=1.0.0",
        "text/plain;version=1.0.0;escaping=underscores",
    ):
        _, headers, text = await site.get("/metrics", Accept=version)
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "specdec_up 1.0" in text
        assert "\nvllm:spec_decode_num_drafts_total{" in text


def test_each_page_is_made_once_within_the_time():
    """However many clients ask, all of them see one moment."""
    now, given, made = [0.0], iter(range(9)), []
    kept = PageCache(1.0, lambda: next(given), lambda: now[0])
    for now[0] in (0.0, 0.5, 0.999, 1.0, 1.5, 3.0):
        assert [kept(name, lambda shown: made.append(shown) or shown) for name in "ab"] == [
            made[-1],
            made[-1],
        ]
    assert made == [0, 0, 1, 1, 2, 2]


def test_a_client_that_asks_for_ever_more_pages_has_few_of_them_kept():
    kept, made = PageCache(1.0, lambda: 0, lambda: 0.0), weakref.WeakSet()
    for name in range(1000):
        made.add(kept(name, lambda _: frozenset({object()})))
    assert len(made) <= 16


def test_a_reading_that_fails_is_a_failure_and_never_an_old_page():
    now, given = [0.0], [5]
    kept = PageCache(1.0, given.pop, lambda: now[0])
    assert kept("a", str) == "5"
    now[0] = 1.0
    with pytest.raises(IndexError):
        kept("a", str)
    given.append(6)
    assert kept("a", str) == "6"
