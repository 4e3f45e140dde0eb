"""Argo's analysis of a canary: what the rules conclude of two versions.

The series grow steadily, so that each case has one right answer. How often chance and noise lead to
a wrong one is simulated in ``benchmarks/calibration``.
"""

import json
import re
import subprocess
from dataclasses import dataclass, field

import pytest

from tests.deploy.argo import RULES, VERDICT, queries, template
from tests.deploy.deploy_tools import ROOT
from tests.marks import slow

PAST = 12 * 60  # minutes of the stable version before the canary
TOGETHER = 70
END = PAST + TOGETHER
EVERY = 10  # minutes between two evaluations
WORSE, FINE = -1, 1
REASONS = "version:specdec_rollout:inconclusive"


@dataclass
class Version:
    """One version's Pod and traffic, by the minute.

    ``tokens`` are those that it makes with so many requests running; ``milliseconds`` what each
    takes there, divided by what the mix of temperatures gives a step. ``drafted`` has accepted
    tokens a step by temperature. ``hours`` are factors of both times, one hour after the other.
    """

    requests: dict = field(default_factory=lambda: {"0": 20, "0.7-1": 15})
    tokens: dict = field(default_factory=lambda: {"5-8": 9000, "9-16": 7000})
    milliseconds: dict = field(default_factory=lambda: {"5-8": 60.0, "9-16": 80.0})
    drafted: dict = field(default_factory=lambda: {"0": 2.4, "0.7-1": 1.2})
    slower: float = 1.0
    first_token: float = 0.2
    broken: float = 0.01
    preempted: float = 0.01
    running: float = 8.0
    context: float | None = 1500.0
    hours: tuple = (1.0,)
    busy_until: int = END
    until: int = END


def series(name, version, begin=0):
    """What Prometheus scrapes of the version, as promtool reads it; once a minute."""
    shared = f'cluster="c",namespace="n",model_name="m",rollouts_pod_template_hash="{name}"'
    minutes = range(begin, version.until + 1)
    rows = {}

    def add(metric, labels, growth):
        """A counter that grows by so much each minute, or by what that says of each minute."""
        total = 0.0
        values = []
        for minute in minutes:
            values.append(total)
            is_busy = minute < version.busy_until
            total += is_busy * (growth(minute) if callable(growth) else growth)
        rows[f"{metric}{{{shared}{labels}}}"] = values

    def hour(minute):
        return version.hours[minute // 60 % len(version.hours)]

    finished = sum(version.requests.values())
    steps = sum(
        number * (1 + version.drafted[temperature])
        for temperature, number in version.requests.items()
    )
    for load, tokens in version.tokens.items():
        label = f',engine="0",running="{load}"'
        seconds = version.slower * version.milliseconds[load] / 1000 / (steps / finished)
        add("specdec_decode_tokens_total", label, tokens)
        add("specdec_decode_seconds_total", label, lambda at, s=seconds, t=tokens: s * t * hour(at))
    for temperature, count in version.requests.items():
        label = f',temperature="{temperature}"'
        ttft = "specdec_request_time_to_first_token_seconds"
        first = version.first_token * count
        add("specdec_requests_total", f'{label},outcome="stopped"', count)
        add(f"{ttft}_sum", label, lambda at, first=first: first * hour(at))
        add(f"{ttft}_count", label, count)
        add("specdec_drafts_total", label, 100 * count)
        add("specdec_draft_tokens_total", label, 300 * count)
        add("specdec_accepted_tokens_total", label, 100 * count * version.drafted[temperature])
        add(
            "specdec_request_endings_total",
            f'{label},ending="normal"',
            count * (1 - version.broken),
        )
        add("specdec_request_endings_total", f'{label},ending="loop"', count * version.broken)
    add("specdec_preemptions_total", ',engine="0"', finished * version.preempted)
    add("specdec_engine_requests_total", ',engine="0"', finished)

    rows[f'specdec_requests_running{{{shared},engine="0"}}'] = [version.running] * len(minutes)
    if version.context is not None:
        rows[f'specdec_context_tokens{{{shared},engine="0"}}'] = [version.context] * len(minutes)

    absent = f"_x{begin} " if begin else ""
    gone = " stale"  # which Prometheus writes when it no longer reaches a Pod
    return [
        {"series": key, "values": absent + " ".join(f"{value:.9g}" for value in values) + gone}
        for key, values in rows.items()
    ]


def rollout(canary, stable=None):
    return series("stable", stable or Version()) + series("canary", canary, PAST)


def run(tmp_path, inputs, *expressions):
    """What promtool gets of each expression at the end: lists of labels and value."""
    unlike = [{"labels": "{}", "value": -99}]
    checks = [
        {"expr": expression, "eval_time": f"{END}m", "exp_samples": unlike}
        for expression in expressions
    ]
    scene = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{EVERY}m",
        "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": checks}],
    }
    path = tmp_path / "scene.json"
    path.write_text(json.dumps(scene))
    done = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )

    found = re.findall(r"got:(.*?)(?=\n\s+expr:|\Z)", done.stdout + done.stderr, re.DOTALL)
    assert len(found) == len(expressions), done.stdout + done.stderr
    return [
        [
            (dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value))
            for labels, value in re.findall(r"\{([^}]*)\} (-?[0-9][0-9.E+-]*)", one)
        ]
        for one in found
    ]


def verdicts(tmp_path, inputs):
    """The verdict of each of the template's measures; a measure without one is absent."""
    asked = queries()
    found = run(tmp_path, inputs, *asked.values())
    assert all(len(one) <= 1 for one in found)
    return {name: int(one[0][1]) for name, one in zip(asked, found, strict=True) if one}


def reasons(tmp_path, inputs):
    [found] = run(tmp_path, inputs, f'{REASONS}{{rollouts_pod_template_hash=~"canary|"}}')
    return {labels["because"].partition(" (value")[0] for labels, _ in found}


ALL_FINE = dict.fromkeys(
    ("time-per-output-token", "time-to-first-token", "broken-endings", "preemptions"), FINE
)
TOKEN = "time-per-output-token"


@pytest.mark.parametrize(
    ("canary", "expected"),
    [
        (Version(), ALL_FINE),
        slow(Version(slower=1.04), ALL_FINE),
        (Version(slower=1.06), ALL_FINE | {TOKEN: WORSE}),
        slow(Version(slower=0.8), ALL_FINE),
        slow(Version(first_token=0.23), ALL_FINE | {"time-to-first-token": WORSE}),
        slow(Version(broken=0.2), ALL_FINE | {"broken-endings": WORSE}),
        slow(Version(preempted=0.3), ALL_FINE | {"preemptions": WORSE}),
        # more hot requests accept less, and are no fault of the version
        slow(Version(requests={"0": 5, "0.7-1": 30}), ALL_FINE),
        slow(Version(requests={"0": 30, "0.7-1": 6}, slower=1.12), ALL_FINE | {TOKEN: WORSE}),
        # another load in each stratum, of which the canary makes more tokens at the slower one
        slow(Version(tokens={"5-8": 6000, "9-16": 12_000}), ALL_FINE),
        slow(Version(tokens={"5-8": 6000, "9-16": 12_000}, slower=1.12), ALL_FINE | {TOKEN: WORSE}),
        slow(Version(context=None), ALL_FINE),
    ],
)
def test_a_canary_is_judged_at_the_same_load_and_temperatures(tmp_path, canary, expected):
    assert verdicts(tmp_path, rollout(canary)) == expected


@pytest.mark.slow
def test_a_lower_acceptance_rate_ends_no_canary_that_is_as_fast(tmp_path):
    """Time decides where it is known; otherwise the acceptance rate does."""
    canary = Version(drafted={"0": 1.2, "0.7-1": 0.6})
    canary.slower = (2 * 1.2 + 1.5 * 0.6 + 3.5) / (2 * 2.4 + 1.5 * 1.2 + 3.5)
    inputs = rollout(canary)
    assert verdicts(tmp_path, inputs) == ALL_FINE

    untimed = [one for one in inputs if "specdec_decode_" not in one["series"]]
    assert verdicts(tmp_path, untimed) == ALL_FINE | {TOKEN: WORSE}


@pytest.mark.parametrize(
    ("canary", "stable", "measures", "because"),
    [
        (
            Version(tokens={"17-32": 16_000}, milliseconds={"17-32": 100}, running=20.0),
            Version(),
            {"broken-endings"},
            "the mean number of requests running differs by more than 22 %",
        ),
        slow(
            Version(tokens={"1": 1000, "5-8": 9000}, milliseconds={"1": 9, "5-8": 60}),
            Version(tokens={"5-8": 1000, "9-16": 9000}),
            {"broken-endings", "preemptions", "time-to-first-token"},
            "the versions run other numbers of requests at once",
        ),
        slow(
            Version(context=6000.0),
            Version(),
            set(),
            "the lengths of the contexts differ by half or more",
        ),
        slow(
            Version(requests={"0.3-0.5": 20}, drafted={"0.3-0.5": 2}),
            Version(),
            {"preemptions"},
            "no temperature at which both versions ended thirty requests in an hour",
        ),
        slow(
            Version(slower=1.03),
            Version(hours=(1.0, 1.0, 1.1, 1.1)),
            {"broken-endings", "preemptions"},
            "too close to what is tolerated for this much noise and traffic",
        ),
    ],
)
def test_where_nothing_can_be_compared_there_is_no_verdict_but_a_sentence(
    tmp_path, canary, stable, measures, because
):
    """Argo calls that inconclusive, and the rollout waits for a person."""
    inputs = rollout(canary, stable)

    assert verdicts(tmp_path, inputs).keys() == measures
    assert any(reason.startswith(because) for reason in reasons(tmp_path, inputs))


@pytest.mark.slow
def test_the_noise_is_the_stable_version_s_own(tmp_path):
    """What it differs by from itself, two hours apart, explains as much of the canary."""
    canary = Version(slower=1.12)
    assert verdicts(tmp_path, rollout(canary))[TOKEN] == WORSE

    noisy = rollout(canary, Version(hours=(1.0, 1.0, 1.1, 1.1)))
    assert TOKEN not in verdicts(tmp_path, noisy)


@pytest.mark.slow
def test_a_stable_version_without_a_past_has_no_noise_to_compare_with(tmp_path):
    inputs = series("stable", Version(), PAST - 300) + series("canary", Version(), PAST)

    assert verdicts(tmp_path, inputs) == {}
    assert "the stable version has no nine hours of past to tell its noise from" in reasons(
        tmp_path, inputs
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "end",
    [{"until": END - 40}, {"until": END - 5}, {"busy_until": END - 7}],
    ids=lambda end: " ".join(f"{name}={minute - END}" for name, minute in end.items()),
)
def test_a_canary_that_died_or_has_no_requests_any_more_has_no_verdict(tmp_path, end):
    """However good it was before. Without requests it may hang, or no longer be ready."""
    assert verdicts(tmp_path, rollout(Version(**end))) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("per_minute", "is_known"), [(1.2, False), (10, True)])
def test_no_broken_ending_among_few_requests_is_no_certainty(tmp_path, per_minute, is_known):
    """Of 72 requests without one, four of a hundred may still end so."""
    version = Version(requests={"0": per_minute}, broken=0.0)
    found = verdicts(tmp_path, rollout(version, version))

    assert ("broken-endings" in found) == is_known


@pytest.mark.slow
def test_three_versions_are_not_compared(tmp_path):
    """During an interrupted rollout nobody knows which of the others is the reference."""
    inputs = rollout(Version()) + series("third", Version(), PAST)

    assert verdicts(tmp_path, inputs) == {}
    assert "not two versions had requests in the last hour" in reasons(tmp_path, inputs)


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


def test_what_promtool_gets_is_read(tmp_path):
    """Otherwise a verdict that is there might count as none."""
    [vector, nothing] = run(tmp_path, rollout(Version()), "vector(3)", "vector(3) > 4")

    assert (vector, nothing) == ([({}, 3.0)], [])
    assert VERDICT in RULES.read_text()
