"""The runbooks as the sidecar serves them."""

import re

from sidecar.analysis.verdict import Verdict
from sidecar.errors import TimedOut
from sidecar.export import runbook
from tests.export import reports


def test_current_numbers_stand_above_the_text():
    shown = reports.shown(reports.report(reports.model(reports.temperature("0.7-1", Verdict.NET_NEGATIVE, 0.3))))
    now, _, _ = runbook.runbook("SpecDecodeKVCachePressure", shown).partition("<h1>")
    assert "Now, at this pod: <b>Speculation loses at temperature 0.7-1, which has 50% of the draft tokens.</b>" in now
    assert "thresholds.kv_cache_usage 0.9" in now
    assert "<h3>KV cache in use, peak</h3>" in now
    assert reports.OBSERVING.text in now


def test_while_vllm_is_down_it_says_why():
    shown = reports.shown(reports.report(scrape=reports.down(TimedOut("incomplete after 5 s"))))
    assert "incomplete after 5 s" in runbook.runbook("SpecDecodeVLLMDown", shown)


def test_links_between_runbooks_work_and_the_others_are_text():
    text = runbook.runbook("SpecDecodeAcceptanceLow", reports.shown(reports.report()))
    links = re.findall(r'href="([^"]+)"', text)
    assert "SpecDecodeAcceptanceLowAtTemperature.md" in links
    assert not [link for link in links if link.startswith("../") and link not in {"../", "../static/style.css"}]
    assert "(README.md#thresholds)" in text


def test_runbooks_are_rendered_without_residue():
    """Whatever of Markdown the renderer does not know would show as it is written."""
    shown = reports.shown(reports.report())
    for name in runbook.names():
        text = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", runbook.runbook(name, shown), flags=re.DOTALL)
        assert not re.search(r"```|`|\*\*|\]\(|^#|^- |^\d+\. ", text, re.MULTILINE), name


def test_markdown_becomes_html_and_is_escaped():
    assert runbook.render("a <b> & `x<y`") == "<p>a &lt;b&gt; &amp; <code>x&lt;y</code></p>"
    assert runbook.render("2. one\n   more\n3. *two*") == '<ol start="2"><li>one\nmore</li><li><i>two</i></li></ol>'
    assert runbook.render("```promql\nup == 0\n```") == "<pre>up == 0\n</pre>"
    assert runbook.render("      --flag\n        deeper") == "<pre>--flag\n  deeper</pre>"
