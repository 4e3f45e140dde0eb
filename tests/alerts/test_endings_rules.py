"""The rules that compare a pod's replies with plain pods' decide as the sidecar's own code does.

Each case is run through both: ``compare`` and promtool.
"""

from bisect import bisect_left
from dataclasses import dataclass
from random import Random

import pytest
import yaml

from sidecar.analysis.endings import Reference, compare
from sidecar.settings.groups import Thresholds
from tests.alerts.scene import RULES, Scene, promtool

MIN_REQUESTS = Thresholds().min_requests
ENDINGS = ("normal", "loop", "empty")
BAD = ("loop", "empty")
CLEARLY_MORE = "group by (model_name, ending) (pod_ending:specdec_bad_endings:excess10m)"
COMPARED = "group by (model_name) (pod:specdec_endings:compared10m)"


@dataclass(frozen=True)
class Case:
    """Requests by temperature and ending: a pod's of ten minutes, and the plain pods' of an hour.

    Each case is a model of its own, named after it.
    """

    name: str
    recent: dict
    before: dict

    def compared(self, ending):
        """As the sidecar compares; None if too few can be compared."""
        if sum(self.recent.values()) < MIN_REQUESTS:
            return None
        return compare(ending, self.recent, self.before, Reference.BASELINE, least=MIN_REQUESTS)

    def is_clearly_more(self, ending):
        change = self.compared(ending)
        return change is not None and change.is_clearly_more


class Compared(Scene):
    """Expects of each case after an hour what ``compare`` says of it."""

    def __init__(self, cases):
        super().__init__("as the sidecar compares", None, at=(60,))
        self.cases = cases

    def test(self, text, **scraped):
        more = [
            {"model_name": case.name, "ending": ending}
            for case in self.cases
            for ending in BAD
            if case.is_clearly_more(ending)
        ]
        known = [{"model_name": case.name} for case in self.cases if case.compared("loop")]
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [series for case in self.cases for series in series_of(case)],
            "promql_expr_test": [expected(CLEARLY_MORE, more), expected(COMPARED, known)],
        }


def expected(expression, samples):
    """Exactly these samples, each of them 1."""
    values = [{"labels": labelled("", **labels), "value": 1} for labels in samples]
    return {"expr": expression, "eval_time": "60m", "exp_samples": values}


def labelled(metric, **labels):
    pairs = [f'{name}="{value}"' for name, value in labels.items()]
    return f"{metric}{{{','.join(pairs)}}}"


def series_of(case):
    """A plain pod and one that speculates; all their requests end in the last minute."""
    for instance, speculates, counts in (("plain", 0, case.before), ("pod", 1, case.recent)):
        labels = {"instance": f"{case.name}-{instance}"}
        model = labels | {"model_name": case.name}

        yield {
            "series": labelled("specdec_threshold", **labels, name="min_requests"),
            "values": f"{MIN_REQUESTS}x60",
        }
        yield {
            "series": labelled("pod:specdec_speculates:bool", **model),
            "values": f"{speculates}x60",
        }
        for temperature in {temperature for temperature, _ in counts}:
            for ending in ENDINGS:
                counter = model | {"temperature": temperature, "ending": ending}
                yield {
                    "series": labelled("specdec_request_endings_total", **counter),
                    "values": f"0x59 {counts.get((temperature, ending), 0)}",
                }


def counted(requests, loops, empty=0, temperature="0"):
    normal = requests - loops - empty
    return {
        (temperature, "normal"): normal,
        (temperature, "loop"): loops,
        (temperature, "empty"): empty,
    }


def binomial(rng, requests, share):
    return sum(rng.random() < share for _ in range(requests))


def on_both_sides(rng, name):
    """Two cases of chance: the most loops that are not clearly more than usual, and one more.

    None if no number of loops is.
    """
    recent = {}
    before = {}
    for temperature in rng.sample(["0", "0-0.3", "0.7-1"], rng.choice([1, 1, 2, 3])):
        requests = rng.choice([3, 8, 30, 60, 200, 1000])
        references = rng.choice([0, 4, 12, 30, 100, 1000, 5000])
        share = rng.choice([0.0, 0.005, 0.02, 0.1, 0.5, 1.0])
        loops = binomial(rng, requests, share)
        usual = binomial(rng, references, share)

        recent |= counted(requests, loops, temperature=temperature)
        before |= counted(references, usual, temperature=temperature)

    rising = rng.choice([temperature for temperature, ending in recent if ending == "loop"])
    requests = recent[rising, "normal"] + recent[rising, "loop"]

    def with_loops(loops):
        cells = recent | counted(requests, loops, temperature=rising)
        return Case(f"{name}-{loops}", cells, before)

    fewest = bisect_left(
        range(requests + 1), 1, key=lambda loops: with_loops(loops).is_clearly_more("loop")
    )
    if not 0 < fewest <= requests:
        return None
    return with_loops(fewest - 1), with_loops(fewest)


def many_on_both_sides(pairs):
    rng = Random(1)
    found = []
    number = 0
    while len(found) < pairs:
        number += 1
        pair = on_both_sides(rng, f"chance-{number}")
        if pair is not None:
            found.append(pair)
    return [case for pair in found for case in pair]


NAMED = [
    Case("empty", counted(100, 0, empty=20), counted(1000, 0, empty=10)),
    Case("both", counted(100, 20, empty=20), counted(1000, 10, empty=10)),
    Case("empty-instead", counted(100, 0, empty=50), counted(1000, 500)),
    Case("few-requests", counted(19, 19), counted(1000, 0)),
    Case("few-references", counted(1000, 1000), counted(19, 0)),
    Case("enough-references", counted(1000, 1000), counted(20, 0)),
    Case("four", counted(20, 4), counted(100_000, 0)),
    Case("five", counted(20, 5), counted(100_000, 0)),
    Case(
        "half-at-another-temperature",
        counted(100, 60) | counted(100, 0, temperature="1+"),
        counted(500, 0),
    ),
    Case(
        "most-at-another-temperature",
        counted(100, 60) | counted(101, 0, temperature="1+"),
        counted(500, 0),
    ),
    Case(
        "too-few-at-the-other-temperature",
        counted(100, 60) | counted(101, 0, temperature="1+"),
        counted(500, 0) | counted(4, 0, temperature="1+"),
    ),
    Case(
        "seven-at-the-other-temperature",
        counted(60, 0) | counted(100, 0, temperature="1+"),
        counted(500, 0) | counted(7, 0, temperature="1+"),
    ),
    Case(
        "six-points-at-two",
        counted(200, 12) | counted(200, 12, temperature="1+"),
        counted(5000, 0) | counted(5000, 0, temperature="1+"),
    ),
    Case(
        "odds-at-two",
        counted(1000, 270) | counted(1000, 270, temperature="1+"),
        counted(5000, 500) | counted(5000, 500, temperature="1+"),
    ),
    Case(
        "a-tiny-reference",
        counted(100, 5) | counted(500, 25, temperature="1+"),
        counted(1000, 50) | counted(10, 0, temperature="1+"),
    ),
]


@pytest.mark.servers
def test_the_rules_decide_as_the_sidecar_does(tmp_path):
    """In cases that were written by hand, and on both sides of what is clearly more."""
    content = yaml.safe_load((RULES / "recording.yaml").read_text())
    (rules,) = [group["rules"] for group in content["groups"] if group["name"] == "specdec-endings"]
    cases = [*NAMED, *many_on_both_sides(80)]

    failed = promtool(tmp_path, Compared(cases), rules, evaluated="60m")

    assert failed is None, failed


def test_the_cases_are_of_every_kind():
    """So that the two are compared where they could differ."""
    answers = {case.name: case.is_clearly_more("loop") for case in NAMED}
    not_compared = {case.name for case in NAMED if case.compared("loop") is None}

    assert {name for name, is_more in answers.items() if is_more} == {
        "both",
        "enough-references",
        "five",
        "half-at-another-temperature",
        "odds-at-two",
        "six-points-at-two",
    }
    assert not_compared == {
        "few-requests",
        "few-references",
        "most-at-another-temperature",
        "too-few-at-the-other-temperature",
    }
