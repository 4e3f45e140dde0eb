"""Argo's analysis of a canary: what the rules conclude of two versions."""

import json
import random
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.deploy.argo import RULES, VERDICT, queries, template
from tests.deploy.deploy_tools import ROOT

MINUTES = 50
STEP = 30  # seconds between two scrapes
WORSE, FINE = -1, 1


@dataclass
class Version:
    """One version's pods and traffic.

    ``requests`` are those that finish a minute, by temperature; ``milliseconds`` the mean time per
    output token there. Each request's own time scatters by a fifth.
    """

    requests: dict = field(default_factory=lambda: {"0": 20, "0.7-1": 15})
    milliseconds: dict = field(default_factory=lambda: {"0": 20.0, "0.7-1": 35.0})
    first_token: float = 0.2
    acceptance: float = 0.6
    broken: float = 0.01
    preempted: float = 0.01
    running: float = 8.0
    context: float | None = 1500.0
    until: int = MINUTES


def series(name, version, seed, model="m"):
    """What Prometheus scrapes of the version, as promtool reads it."""
    chance = random.Random(seed)
    shared = f'cluster="c",namespace="n",model_name="{model}",rollouts_pod_template_hash="{name}"'
    scrapes = version.until * 60 // STEP + 1
    rows = {}

    def add(metric, labels, value):
        key = f"{metric}{{{shared}{labels}}}"
        rows.setdefault(key, [0.0])
        rows[key].append(rows[key][-1] + value)

    for _ in range(scrapes - 1):
        finished = 0
        for temperature, per_minute in version.requests.items():
            label = f',temperature="{temperature}"'
            share = per_minute * STEP / 60
            count = max(round(chance.gauss(share, share**0.5)), 0)
            mean = version.milliseconds[temperature] / 1000
            spread = 0.2 / max(count, 1) ** 0.5
            factor = chance.gauss(1, spread)
            broken = sum(chance.random() < version.broken for _ in range(count))
            drafted = 300 * count
            accepted = drafted * chance.gauss(version.acceptance, 0.05 / max(count, 1) ** 0.5)
            finished += count
            tpot = "specdec_request_time_per_output_token_seconds"
            ttft = "specdec_request_time_to_first_token_seconds"
            add("specdec_requests_total", f'{label},outcome="stopped"', count)
            add(f"{tpot}_sum", label, count * mean * factor)
            add(f"{tpot}_count", label, count)
            add(f"{ttft}_sum", label, count * version.first_token * chance.gauss(1, spread))
            add(f"{ttft}_count", label, count)
            add("specdec_draft_tokens_total", label, drafted)
            add("specdec_accepted_tokens_total", label, accepted)
            add("specdec_request_endings_total", f'{label},ending="normal"', count - broken)
            add("specdec_request_endings_total", f'{label},ending="loop"', broken)
        preempted = sum(chance.random() < version.preempted for _ in range(finished))
        add("specdec_preemptions_total", ',engine="0"', preempted)
        add("specdec_engine_requests_total", ',engine="0"', finished)

    written = {key: " ".join(f"{value:.6g}" for value in values) for key, values in rows.items()}
    engine = f'{{{shared},engine="0"}}'
    written[f"specdec_requests_running{engine}"] = f"{version.running}x{scrapes}"
    if version.context is not None:
        written[f"specdec_context_tokens{engine}"] = f"{version.context}x{scrapes}"
    return [{"series": key, "values": values} for key, values in written.items()]


def promtool(tmp_path, inputs, *tests):
    """Fails unless promtool gets the samples of each (expression, samples) at the last minute."""
    done = run(tmp_path, inputs, *tests)
    assert done.returncode == 0, done.stdout + done.stderr


def run(tmp_path, inputs, *tests):
    """What promtool says of them."""
    checks = [
        {"expr": expression, "eval_time": f"{MINUTES}m", "exp_samples": samples}
        for expression, samples in tests
    ]
    scene = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "2m",
        "tests": [
            {"interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": checks},
        ],
    }
    path = tmp_path / "scene.json"
    path.write_text(json.dumps(scene))
    return subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )


def conclusion(code, measure):
    labels = (
        f'{VERDICT}{{cluster="c",namespace="n",model_name="m",'
        f'rollouts_pod_template_hash="canary",measure="{measure}"}}'
    )
    return [{"labels": labels, "value": code}]


STABLE = Version()
HOTTER = {"0": 5, "0.7-1": 30}
SLOWER = {"0": 23.0, "0.7-1": 40.0}
FASTER = {"0": 16.0, "0.7-1": 30.0}
SCENES = {
    "better": (Version(milliseconds=FASTER), FINE, "time_per_output_token"),
    "worse": (Version(milliseconds=SLOWER), WORSE, "time_per_output_token"),
    "same_at_a_hotter_mix": (Version(requests=HOTTER), FINE, "time_per_output_token"),
    "worse_at_a_colder_mix": (
        Version(requests={"0": 30, "0.7-1": 6}, milliseconds=SLOWER),
        WORSE,
        "time_per_output_token",
    ),
    "too_little_traffic": (Version(requests={"0": 1, "0.7-1": 0.5}), None, ""),
    "no_temperature_in_common": (
        Version(requests={"0.3-0.5": 20}, milliseconds={"0.3-0.5": 20}),
        None,
        "",
    ),
    "another_load": (Version(milliseconds=SLOWER, running=16.0), None, ""),
    "another_context": (Version(milliseconds=SLOWER, context=6000.0), None, ""),
    "dead": (Version(until=10), None, ""),
    "no_plugin_s_context": (
        Version(milliseconds=SLOWER, context=None),
        WORSE,
        "time_per_output_token",
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_a_canary_s_time_per_token_is_judged_at_the_same_temperatures(tmp_path, name):
    """Where temperatures, load, context or traffic allow no comparison, there is no verdict."""
    canary, code, measure = SCENES[name]
    inputs = series("stable", STABLE, 1) + series("canary", canary, 2)
    expected = [] if code is None else conclusion(code, measure)

    promtool(tmp_path, inputs, (queries()["time-per-output-token"], expected))


@pytest.mark.parametrize(
    ("query", "worse"),
    [
        ("time-to-first-token", {"first_token": 0.3}),
        ("broken-endings", {"broken": 0.2}),
        ("preemptions", {"preempted": 0.3}),
    ],
)
def test_each_other_measure_ends_a_worse_canary_and_passes_an_equal_one(tmp_path, query, worse):
    """A canary that is equal but for one measure fails by that one."""
    measure = query.replace("-", "_")
    equal = series("stable", STABLE, 1) + series("canary", STABLE, 2)
    promtool(tmp_path, equal, (queries()[query], conclusion(FINE, measure)))

    inputs = series("stable", STABLE, 1) + series("canary", Version(**worse), 2)
    promtool(tmp_path, inputs, (queries()[query], conclusion(WORSE, measure)))


def test_a_lower_acceptance_rate_ends_no_canary_that_is_as_fast(tmp_path):
    """Time decides where it is known; otherwise the acceptance rate does."""
    canary = Version(acceptance=0.4)
    inputs = series("stable", STABLE, 1) + series("canary", canary, 2)
    query = queries()["time-per-output-token"]
    promtool(tmp_path, inputs, (query, conclusion(FINE, "time_per_output_token")))

    untimed = [one for one in inputs if "time_per_output_token" not in one["series"]]
    promtool(tmp_path, untimed, (query, conclusion(WORSE, "acceptance")))


def test_three_versions_are_not_compared(tmp_path):
    """During an interrupted rollout nobody knows which of the others is the reference."""
    inputs = [
        one
        for seed, name in enumerate(("stable", "canary", "third"))
        for one in series(name, STABLE, seed)
    ]

    promtool(tmp_path, inputs, (queries()["time-per-output-token"], []))


def schema(manifest):
    """What Argo's own schema says of a template; nothing if it is valid."""
    script = ROOT / "scripts/argo-models"
    done = subprocess.run(
        [script], input=json.dumps(manifest), capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode else done.stderr


@pytest.mark.slow
def test_the_template_is_valid_by_argo_s_schema():
    """The schema notices a wrong type, so that its silence says something."""
    manifest = template()

    assert not schema(manifest)
    manifest["spec"]["metrics"][0]["count"] = {}
    assert "metrics/0/count" in schema(manifest)


# Hardly enough requests to be compared, of which more are preempted and end in loops.
RARE = Version(requests={"0": 4, "0.7-1": 3.5}, broken=0.03, preempted=0.05)
BATCH = 25  # pairs that promtool takes at once within its limit of samples
FOUND = re.compile(r'\{found="(\w+)"\} ([\d.E+]+)')


@pytest.mark.slow
@pytest.mark.limit(3600)
@pytest.mark.parametrize("version", [STABLE, RARE], ids=["busy", "rare"])
def test_hardly_any_canary_without_a_change_is_ended(tmp_path, request, record_property, version):
    """Of rollouts of an equal version, at most 5 % fail by any measure, and nine of ten end."""
    pairs = request.config.getoption("--null-pairs")
    found = Counter()

    for first in range(0, pairs, BATCH):
        inputs = [
            one
            for number in range(first, min(first + BATCH, pairs))
            for seed, name in ((2 * number, "stable"), (2 * number + 1, "canary"))
            for one in series(name, version, seed, model=f"m{number}")
        ]
        found += concluded(tmp_path, inputs)

    unknown = pairs - found["known"]
    record_property("failed", found["failed"])
    record_property("unknown", unknown)
    assert found["failed"] <= 0.05 * pairs
    assert unknown <= 0.1 * pairs


def concluded(tmp_path, inputs):
    """How many canaries have a verdict by any measure, and how many of these have failed."""
    canaries = f'{VERDICT}{{rollouts_pod_template_hash="canary"}}'
    counts = {
        "failed": f"count(count by (model_name) ({canaries} == -1))",
        "known": f"count(count by (model_name) ({canaries}))",
    }
    expression = " or ".join(
        f'label_replace({counted}, "found", "{name}", "", "")' for name, counted in counts.items()
    )

    done = run(tmp_path, inputs, (expression, []))  # promtool prints what it did not expect
    return Counter(
        {name: int(float(count)) for name, count in FOUND.findall(done.stdout + done.stderr)}
    )
