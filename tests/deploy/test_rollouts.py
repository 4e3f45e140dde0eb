"""Argo's analysis of a canary: what the rules conclude of two versions."""

import json
import math
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
MEASURES = ("time_per_output_token", "time_to_first_token", "broken_endings", "preemptions")


@dataclass
class Version:
    """One version's pods and traffic.

    ``requests`` are those that finish a minute, by temperature; ``milliseconds`` the mean time per
    output token there. Each request's own time scatters by a fifth; what all requests have in
    common, by ``noise``, a share of each measure, and that lasts: see ``Noise``. Nothing finishes
    after minute ``busy_until``, and the pods are gone after ``until``.
    """

    requests: dict = field(default_factory=lambda: {"0": 20, "0.7-1": 15})
    milliseconds: dict = field(default_factory=lambda: {"0": 20.0, "0.7-1": 35.0})
    first_token: float = 0.2
    acceptance: float = 0.6
    broken: float = 0.01
    preempted: float = 0.01
    running: float = 8.0
    context: float | None = 1500.0
    noise: float = 0.02
    busy_until: int = MINUTES
    until: int = MINUTES


class Noise:
    """A factor that is drawn anew every two minutes, and lasts: first-order autoregressive."""

    CORRELATION = 0.5  # of a factor's logarithm and the next one's
    SCRAPES = 120 // STEP

    def __init__(self, chance, spread):
        self._chance = chance
        self._spread = spread
        self._level = chance.gauss(0, 1)

    def at(self, scrape):
        """The factor at a scrape; scrapes are asked for in turn."""
        if scrape and scrape % self.SCRAPES == 0:
            innovation = self._chance.gauss(0, (1 - self.CORRELATION**2) ** 0.5)
            self._level = self.CORRELATION * self._level + innovation
        return math.exp(self._spread * self._level)


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

    noises = {name: Noise(chance, version.noise) for name in MEASURES}
    for scrape in range(scrapes - 1):
        finished = 0
        factors = {name: noise.at(scrape) for name, noise in noises.items()}
        is_busy = scrape * STEP < version.busy_until * 60
        minutes = STEP / 60 if is_busy else 0
        for temperature, per_minute in version.requests.items():
            label = f',temperature="{temperature}"'
            share = per_minute * minutes
            count = max(round(chance.gauss(share, share**0.5)), 0)
            spread = 0.2 / max(count, 1) ** 0.5
            token = version.milliseconds[temperature] / 1000
            token *= chance.gauss(1, spread) * factors["time_per_output_token"]
            first = version.first_token * chance.gauss(1, spread) * factors["time_to_first_token"]
            likely = version.broken * factors["broken_endings"]
            broken = sum(chance.random() < likely for _ in range(count))
            drafted = 300 * count
            accepted = drafted * chance.gauss(version.acceptance, 0.05 / max(count, 1) ** 0.5)
            finished += count
            tpot = "specdec_request_time_per_output_token_seconds"
            ttft = "specdec_request_time_to_first_token_seconds"
            add("specdec_requests_total", f'{label},outcome="stopped"', count)
            add(f"{tpot}_sum", label, count * token)
            add(f"{tpot}_count", label, count)
            add(f"{ttft}_sum", label, count * first)
            add(f"{ttft}_count", label, count)
            add("specdec_draft_tokens_total", label, drafted)
            add("specdec_accepted_tokens_total", label, accepted)
            add("specdec_request_endings_total", f'{label},ending="normal"', count - broken)
            add("specdec_request_endings_total", f'{label},ending="loop"', broken)
        likely = version.preempted * factors["preemptions"]
        preempted = sum(chance.random() < likely for _ in range(finished))
        add("specdec_preemptions_total", ',engine="0"', preempted)
        add("specdec_engine_requests_total", ',engine="0"', finished)

    written = {key: " ".join(f"{value:.6g}" for value in values) for key, values in rows.items()}
    engine = f'{{{shared},engine="0"}}'
    written[f"specdec_requests_running{engine}"] = f"{version.running}x{scrapes - 1}"
    if version.context is not None:
        written[f"specdec_context_tokens{engine}"] = f"{version.context}x{scrapes - 1}"

    gone = " stale"  # which Prometheus writes when it no longer reaches a Pod
    return [{"series": key, "values": values + gone} for key, values in written.items()]


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
        "evaluation_interval": "5m",  # rules read each other's values of whole five minutes only
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


@pytest.mark.parametrize(
    "end",
    [{"until": 10}, {"until": 34}, {"until": 42}, {"until": 48}, {"busy_until": 44}],
    ids=lambda end: " ".join(f"{name}={minute}" for name, minute in end.items()),
)
def test_a_canary_that_died_or_has_no_requests_any_more_has_no_verdict(tmp_path, end):
    """However good it was before. Without requests it may hang, or no longer be ready."""
    inputs = series("stable", STABLE, 1) + series("canary", Version(**end), 2)

    promtool(tmp_path, inputs, *((query, []) for query in queries().values()))


@pytest.mark.parametrize(
    ("milliseconds", "code"), [(20.0, FINE), (20.8, None), (21.5, None), (23.0, WORSE)]
)
def test_a_canary_fails_only_if_it_is_certainly_slower_than_is_tolerated(
    tmp_path, milliseconds, code
):
    """Neither 4 % nor 7.5 % more time is certainly within or beyond 5 %, by forty minutes."""
    times = {"0": milliseconds, "0.7-1": 1.75 * milliseconds}
    inputs = series("stable", STABLE, 1) + series("canary", Version(milliseconds=times), 2)
    expected = [] if code is None else conclusion(code, "time_per_output_token")

    promtool(tmp_path, inputs, (queries()["time-per-output-token"], expected))


@pytest.mark.parametrize(("per_minute", "code"), [(3, None), (10, FINE)])
@pytest.mark.parametrize(
    ("query", "without"),
    [("broken-endings", {"broken": 0.0}), ("preemptions", {"preempted": 0.0})],
)
def test_no_event_among_few_requests_is_no_certainty(tmp_path, per_minute, code, query, without):
    """Of 120 requests each without a broken ending, three of a hundred may still end so.

    A preemption in twenty requests is tolerated, so 120 requests are enough for those.
    """
    version = Version(requests={"0": per_minute}, **without)
    inputs = series("stable", version, 1) + series("canary", version, 2)
    measure = query.replace("-", "_")
    is_known = code is not None or measure == "preemptions"

    promtool(tmp_path, inputs, (queries()[query], conclusion(FINE, measure) if is_known else []))


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


BATCH = 25  # pairs that promtool takes at once within its limit of samples
EQUAL = {  # and the largest share that may be inconclusive
    "busy": (STABLE, 0.2),
    "noisy": (Version(noise=0.2), 1.0),
    # hardly enough requests to be compared, of which more are preempted and end in loops
    "rare": (Version(requests={"0": 4, "0.7-1": 3.5}, broken=0.03, preempted=0.05), 1.0),
}
ENDED = "ended"
INCONCLUSIVE = "inconclusive"
CANARIES = f'{VERDICT}{{rollouts_pod_template_hash="canary"}}'
FAILED = f"count(count by (model_name) ({CANARIES} == -1))"
SUCCESSFUL = f"count(count by (model_name) ({CANARIES} == 1) == {len(MEASURES)})"


@pytest.mark.slow
@pytest.mark.limit(3600)
@pytest.mark.parametrize("name", EQUAL)
def test_hardly_any_canary_without_a_change_is_ended(tmp_path, request, record_property, name):
    """Of equal versions at most 5 % fail by any measure, also where most cannot be told.

    With little noise and enough requests, four of five succeed.
    """
    pairs = request.config.getoption("--null-pairs")
    version, most_inconclusive = EQUAL[name]
    found = outcomes(tmp_path, pairs, version, version)

    for outcome in (ENDED, INCONCLUSIVE):
        record_property(outcome, found[outcome])
    assert found[ENDED] <= 0.05 * pairs
    assert found[INCONCLUSIVE] <= most_inconclusive * pairs


# By how many percent the canary is slower: the fewest and the most that are ended of 100.
ENDED_BY_PERCENT = {
    0: (0, 5),
    3: (0, 5),
    5: (0, 10),
    8: (10, 50),
    10: (50, 90),
    12: (80, 100),
    15: (95, 100),
}


@pytest.mark.measured
@pytest.mark.limit(3600)
@pytest.mark.parametrize("percent", ENDED_BY_PERCENT)
def test_the_slower_a_canary_is_the_likelier_it_is_ended(tmp_path, record_property, percent):
    """The README's table. What is slower by 12 % is hardly ever missed."""
    times = {name: time * (1 + percent / 100) for name, time in STABLE.milliseconds.items()}
    found = outcomes(tmp_path, 100, STABLE, Version(milliseconds=times))

    for name in (ENDED, INCONCLUSIVE):
        record_property(name, found[name])
    fewest, most = ENDED_BY_PERCENT[percent]
    assert fewest <= found[ENDED] <= most


def outcomes(tmp_path, pairs, stable, canary):
    """How many rollouts are ended, and how many have a measure without a verdict but none worse."""
    found = Counter()
    for first in range(0, pairs, BATCH):
        numbers = range(first, min(first + BATCH, pairs))
        inputs = [
            one
            for number in numbers
            for seed, name, version in (
                (2 * number, "stable", stable),
                (2 * number + 1, "canary", canary),
            )
            for one in series(name, version, seed, model=f"m{number}")
        ]
        failed, successful = measured_each(
            tmp_path, inputs, f"{FAILED} or vector(0)", f"{SUCCESSFUL} or vector(0)"
        )
        found[ENDED] += int(failed)
        found[INCONCLUSIVE] += int(len(numbers) - failed - successful)
    return found


def measured(tmp_path, inputs, expression):
    """The value of an expression, which is a vector of one value without labels."""
    [value] = measured_each(tmp_path, inputs, expression)
    return value


def measured_each(tmp_path, inputs, *expressions):
    """The same of each.

    promtool only says what differs from what it expects, on which stream depends on its version.
    """
    unlike = [{"labels": "{}", "value": -1}]
    done = run(tmp_path, inputs, *((expression, unlike) for expression in expressions))
    said = done.stdout + done.stderr

    values = re.findall(r"got:\s*\{\} (\S+)", said)
    assert len(values) == len(expressions), said
    return [float(value) for value in values]


def test_what_promtool_measures_is_read(tmp_path):
    """Otherwise the test of equal versions would find no failure whatever the rules said."""
    inputs = series("stable", Version(until=1), 1)

    assert measured(tmp_path, inputs, "vector(3)") == 3
    assert measured_each(tmp_path, inputs, "vector(0)", "vector(2)") == [0, 2]
