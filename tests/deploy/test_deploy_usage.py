"""The choice about usage in streams: the files leave it to the operator, and say so."""

import json
import re

from tests.deploy.deploy_tools import DEPLOY, ROOT

EXCHANGES = ROOT / "tests" / "data" / "exchanges"


def test_whoever_reads_the_flags_reads_of_the_setting_for_streams():
    """Changing requests is the operator's choice; the flag that changes what clients get is not recommended."""
    texts = {path: path.read_text() for path in DEPLOY.rglob("*.yaml") if path.parent.name != "monitoring"}
    setting = {
        path: text for path, text in texts.items() if re.search(r"^\s*[^#\s].*per-request-spec", text, re.MULTILINE)
    }
    assert len(setting) == 6
    for path, text in setting.items():
        comments = " ".join(line.strip(" #") for line in text.splitlines() if line.lstrip().startswith("#"))
        assert "SPECDEC_REQUESTS__ASK_USAGE=true" in comments, path
        assert "see deploy/README.md" in comments, path
        assert "force-include-usage" not in re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE), path
    assert "## Streams and usage" in (DEPLOY / "README.md").read_text()


def test_what_the_pages_say_of_usage_is_what_vllm_does():
    """With the flag each chunk has usage and a last one has no choices; without it a stream has no token count."""
    chunks = {}
    for name in ("chat-stream", "chat-stream.without-metrics"):
        body = json.loads((EXCHANGES / f"{name}.json").read_text())["body"]
        chunks[name] = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    forced, plain = chunks.values()
    assert all(chunk["usage"] for chunk in forced)
    assert [bool(chunk["choices"]) for chunk in forced[-2:]] == [True, False]
    assert not any(chunk.get("usage") for chunk in plain)
    for page in (ROOT / "README.md", DEPLOY / "README.md"):
        text = " ".join(page.read_text().split())
        assert "`--enable-force-include-usage`" in text, page
        assert "without choices" in text, page
        assert "include_usage" in text, page
        assert "`SPECDEC_REQUESTS__ASK_USAGE=true`" in text, page
