"""The runbooks as the sidecar serves them."""

import re

import pytest

from sidecar.alerting.rules import load_rules
from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.export import runbook
from sidecar.settings import load_settings

NOTHING = {"thresholds": {}, "targets": []}


@pytest.fixture
async def pages(http):
    """Fetches a path of a sidecar beside a simulated vLLM: status and text."""
    async with SimulatedVllm(SimulatorOptions()) as vllm:
        environment = {
            "SPECDEC_VLLM_URL": vllm.url,
            "SPECDEC_LISTEN": "127.0.0.1:0",
            "SPECDEC_SCRAPE_INTERVAL": "100ms",
        }
        async with running(load_settings(None, environment)) as address:

            async def fetch(path):
                async with http.get(f"http://{address}{path}") as response:
                    return response.status, await response.text()

            yield fetch


async def test_every_alert_s_link_leads_to_its_runbook(pages):
    for name in {rule.name for rule in load_rules().values()}:
        for path in (f"/runbooks/{name}", f"/runbooks/{name}.md"):
            status, text = await pages(path)
            assert status == 200, path
            assert f"<h1>{name}</h1>" in text


async def test_current_numbers_stand_above_the_text(pages, eventually):
    async def shown():
        _, text = await pages("/runbooks/SpecDecodeKVCachePressure")
        return text if "vLLM answers" in text and "KV cache in use, peak" in text else None

    text = None
    for _ in range(200):
        if text := await shown():
            break
        await pages("/-/ready")
    assert text.index("Now, at this pod") < text.index("<h1>SpecDecodeKVCachePressure</h1>")
    assert re.search(r"<th>thresholds\.kv_cache_usage</th><td class=\'number\'>0\.9</td>", text)


async def test_links_between_runbooks_work_and_the_others_are_text(pages):
    _, text = await pages("/runbooks/SpecDecodeAcceptanceLow")
    links = re.findall(r'href="([^"]+)"', text)
    assert "SpecDecodeAcceptanceLowAtTemperature.md" in links
    assert not [link for link in links if link.startswith("../") and link not in {"../", "../static/style.css"}]
    assert "(README.md#thresholds)" in text


@pytest.mark.parametrize("path", ["/runbooks/SpecDecodeNothing", "/runbooks/..%2Fpyproject"])
async def test_anything_else_is_not_found(pages, path):
    status, _ = await pages(path)
    assert status == 404


async def test_the_index_links_to_all(pages):
    status, text = await pages("/runbooks/")
    assert status == 200
    assert re.findall(r'<a href="(\w+)\.md">', text) == runbook.names()


def test_runbooks_are_rendered_without_residue():
    """Whatever of Markdown the renderer does not know would show as it is written."""
    for name in runbook.names():
        shown = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", runbook.runbook(name, NOTHING), flags=re.DOTALL)
        assert not re.search(r"```|`|\*\*|\]\(|^#|^- |^\d+\. ", shown, re.MULTILINE), name


def test_markdown_becomes_html_and_is_escaped():
    assert runbook.render("a <b> & `x<y`") == "<p>a &lt;b&gt; &amp; <code>x&lt;y</code></p>"
    assert runbook.render("2. one\n   more\n3. *two*") == '<ol start="2"><li>one\nmore</li><li><i>two</i></li></ol>'
    assert runbook.render("```promql\nup == 0\n```") == "<pre>up == 0\n</pre>"
    assert runbook.render("      --flag\n        deeper") == "<pre>--flag\n  deeper</pre>"
