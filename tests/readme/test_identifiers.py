"""Names in the pages' backticks exist, and the changelog lists what became of the metrics."""

import re
import subprocess
from pathlib import Path

from scripts.metrics_reference import contract
from sidecar.export.metrics import METRICS
from sidecar.settings.groups import keys, variable
from tests.readme.test_pages import PAGES

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "tests" / "data" / "released-metrics.txt"
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names of other programs that nothing here uses: vLLM's, Kubernetes', Ray's, Istio's and Grafana's.
ELSEWHERE = {
    "DYN_FORWARDPASS_METRIC_PORT",
    "KubeNodeNotReady",
    "KubePodNotReady",
    "PROMETHEUS_MULTIPROC_DIR",
    "ModelGone",  # ours, after SpecDecode, in a pattern
    "RecomputeScheduler",
    "SpecDecodeSidecar",  # as many of ours begin
    "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY",
    "__meta_kubernetes_pod_label_rollouts_pod_template_hash",
    "_input_fits_in_drafter",
    "alert_relabel_configs",
    "alertmanager_notifications_failed_total",
    "disable_by_batch_size",
    "disable_padded_drafter_batch",
    "excludeInboundPorts",
    "fly_window_size",
    "lastTimestamp",
    "online_serving",
    "rate_limit",
    "remoteWrite",
    "repetition_detection",
    "podTargetLabels",
    "portLevelMtls",
    "speculative_model",
    "tcpSocket",
    "validate_tokens",
    "viewPanel",
}


def tracked():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split()]


def known_names():
    """Every word of the repository's code and data, and what is derived from it."""
    sources = [
        path for path in tracked() if path.is_file() and path.suffix not in {".md", ".png", ".lock"}
    ]
    words = {word for path in sources for word in WORD.findall(path.read_text(errors="ignore"))}
    metrics = {metric.name for metric in METRICS}
    settings = {variable(key) for key in keys()}
    files = {path.stem for path in sources}
    return words | metrics | settings | files | ELSEWHERE


def is_identifier(word):
    """Whether it is written as only a program's names are: with an underscore, or camelCase."""
    return "_" in word.strip("_") or re.search(r"[a-z][A-Z]", word) is not None


def test_every_identifier_in_backticks_exists():
    """A renamed class, test, setting or metric is renamed in the pages too."""
    known = known_names()
    unknown = {
        (str(path.relative_to(ROOT)), word)
        for path, text in PAGES.items()
        for code in re.findall(r"`([^`\n]+)`", text)
        for word in WORD.findall(code)
        if is_identifier(word)
        and word not in known
        # What a metric's or a test's name begins with stands for all of them.
        and not (word.endswith("_") and any(name.startswith(word) for name in known))
    }

    assert unknown == set()


def unreleased():
    """The changelog's section on what is not released yet."""
    text = (ROOT / "CHANGELOG.md").read_text()
    return text.partition("## Unreleased")[2].partition("\n## ")[0]


def test_the_changelog_lists_every_metric_that_came_changed_or_went():
    """Dashboards and rules of users depend on them, and read nothing but the changelog."""
    lines = RELEASED.read_text().splitlines()
    released = {line.split()[0]: line for line in lines if not line.startswith("#")}
    now = {line.split()[0]: line for line in contract()}
    differing = {
        name for name in released.keys() | now.keys() if released.get(name) != now.get(name)
    }

    missing = {name for name in differing if f"`{name}`" not in unreleased()}
    assert missing == set(), "add these to CHANGELOG.md under Unreleased, in backticks"
