"""The runbooks as the sidecar serves them."""

import re

from sidecar.analysis.verdict import Verdict
from sidecar.export import runbook
from tests.export import reports


def test_current_numbers_stand_above_the_text():
    shown = reports.shown(reports.report(reports.model(reports.temperature("0.7-1", Verdict.NET_NEGATIVE, 0.3))))
    now, _, _ = runbook.runbook("SpecDecodeKVCachePressure", shown).partition("<pre")
    assert "Now, at this pod: <b>Speculation loses at temperature 0.7-1, which has 50% of the draft tokens.</b>" in now
    assert "thresholds.kv_cache_usage 0.9" in now
    assert "<h3>KV cache in use, peak</h3>" in now
    assert reports.OBSERVING.text in now


def test_links_between_runbooks_work_and_the_others_are_text():
    text = runbook.runbook("SpecDecodeAcceptanceLow", reports.shown(reports.report()))
    links = re.findall(r'href="([^"]+)"', text)
    assert "SpecDecodeAcceptanceLowAtTemperature.md" in links
    assert not [link for link in links if link.startswith("../") and link not in {"../", "../static/style.css"}]
    assert "](../README.md#thresholds)" in text


def test_the_text_is_escaped_and_its_paragraphs_are_unwrapped():
    text = "# Do <b>\n\nOne & the\nsame `x<y`.\n\n- first\n  item\n- second\n\n```\na\nb\n```\n"
    assert runbook.render(text) == (
        '<pre class="runbook"># Do &lt;b&gt;\n\nOne &amp; the same `x&lt;y`.\n\n- first item\n- second\n\n'
        "```\na\nb\n```\n</pre>"
    )
