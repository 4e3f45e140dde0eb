"""The sidecar's own pages over HTTP."""

import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from sidecar.analysis.verdict import Verdict
from sidecar.export import runbook
from sidecar.export.web import Pages, at_most_every, make_web
from tests.export import reports


@pytest.fixture
async def site():
    """Fetches a path: status, headers and text; ``site.pages`` says what there is."""

    class Site:
        report = reports.report(reports.model(reports.temperature("0.7-1", Verdict.NET_NEGATIVE, 0.3)))
        ready = False

        async def get(self, path):
            async with client.get(path, allow_redirects=False) as response:
                return response.status, response.headers, await response.text()

    site = Site()
    app = make_web(Pages(lambda: reports.shown(site.report), lambda: site.ready))
    async with TestClient(TestServer(app)) as client:
        yield site


async def test_probes(site):
    assert (await site.get("/-/healthy"))[0] == 200
    assert (await site.get("/-/ready"))[0] == 503
    site.ready = True
    assert (await site.get("/-/ready"))[0] == 200


async def test_metrics_status_and_page_say_the_same(site):
    _, headers, metrics = await site.get("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'specdec_verdict{model_name="demo",temperature="0.7-1",verdict="net_negative"} 1.0' in metrics
    status = json.loads((await site.get("/api/v1/status"))[2])
    assert status["models"][0]["temperatures"][0]["judgement"]["verdict"] == "net_negative"
    _, headers, page = await site.get("/")
    assert "net negative" in page
    assert status["answer"]["text"] in page
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    content = (await site.get("/content"))[2]
    assert content in page


async def test_the_page_s_files(site):
    for name, kind in (("style.css", "text/css"), ("live.js", "text/javascript")):
        status, headers, _ = await site.get(f"/static/{name}")
        assert (status, headers["Content-Type"]) == (200, kind)


async def test_every_runbook_is_served_below_the_pods_numbers(site):
    for name in runbook.names():
        for path in (f"/runbooks/{name}", f"/runbooks/{name}.md"):
            status, _, text = await site.get(path)
            assert status == 200, path
            assert text.index("Now, at this pod") < text.index(f"# {name}\n")
    _, _, index = await site.get("/runbooks/")
    assert all(f'<a href="{name}.md">' in index for name in runbook.names())


@pytest.mark.parametrize("path", ["/runbooks/SpecDecodeNothing", "/runbooks/..%2Fpyproject", "/nothing"])
async def test_anything_else_is_not_found(site, path):
    assert (await site.get(path))[0] == 404


def test_made_once_within_the_time():
    now, made = [0.0], iter(range(9))
    recent = at_most_every(1.0, lambda: next(made), lambda: now[0])
    found = []
    for now[0] in (0.0, 0.5, 0.999, 1.0, 1.5, 3.0):
        found.append(recent())
    assert found == [0, 0, 0, 1, 1, 2]


def test_a_failure_is_not_kept():
    outcomes = iter([ValueError, 5])

    def make():
        if (outcome := next(outcomes)) is ValueError:
            raise ValueError("first")
        return outcome

    recent = at_most_every(1.0, make, lambda: 0.0)
    with pytest.raises(ValueError, match="first"):
        recent()
    assert recent() == 5
