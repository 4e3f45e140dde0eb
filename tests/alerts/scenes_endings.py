"""A scene in which the rules compare replies with plain pods' as the sidecar's own code does.

Each case is run through both: ``compare`` and promtool.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from random import Random

from sidecar.analysis.endings import Reference, compare
from sidecar.settings.groups import Thresholds
from tests.alerts.scene import Scene, scenes

MIN_REQUESTS = Thresholds().min_requests
BAD = ("loop", "empty")
CLEARLY_MORE = "pod_ending:specdec_bad_endings:excess10m"
COMPARED = "pod:specdec_endings:compared10m"
PAIRS = 60  # of cases of chance


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
    """Expects of each case what ``compare`` says of it."""

    def __init__(self):
        records = {CLEARLY_MORE: (), COMPARED: ()}
        super().__init__("as the sidecar compares replies", None, at=(1,), records=records)

    @cached_property
    def cases(self):
        return [*NAMED, *many_on_both_sides(PAIRS)]

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
            "promql_expr_test": [
                expected(f"group by (model_name, ending) ({CLEARLY_MORE})", more),
                expected(f"group by (model_name) ({COMPARED})", known),
            ],
        }


@scenes
def as_the_sidecar_compares():
    yield Compared()


def expected(expression, samples):
    """Exactly these samples, each of them 1."""
    values = [{"labels": labelled("", **labels), "value": 1} for labels in samples]
    return {"expr": expression, "eval_time": "1m", "exp_samples": values}


def labelled(metric, **labels):
    pairs = [f'{name}="{value}"' for name, value in labels.items()]
    return f"{metric}{{{','.join(pairs)}}}"


def series_of(case):
    """Two plain pods and one that speculates; all their requests end between two scrapes."""
    part = {cell: count // 3 for cell, count in case.before.items()}
    rest = {cell: count - part[cell] for cell, count in case.before.items()}
    yield from pod_series(case.name, "plain", part, speculates=0)
    yield from pod_series(case.name, "plain-too", rest, speculates=0)
    yield from pod_series(case.name, "pod", case.recent, speculates=1)


def pod_series(model_name, instance, counts, *, speculates):
    labels = {"instance": f"{model_name}-{instance}"}
    model = labels | {"model_name": model_name}

    yield {
        "series": labelled("specdec_threshold", **labels, name="min_requests"),
        "values": f"{MIN_REQUESTS}x1",
    }
    yield {
        "series": labelled("pod:specdec_speculates:bool", **model),
        "values": f"{speculates}x1",
    }
    for (temperature, ending), count in counts.items():
        counter = model | {"temperature": temperature, "ending": ending}
        yield {
            "series": labelled("specdec_request_endings_total", **counter),
            "values": f"0 {count}",
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
        "five-at-two",
        counted(10, 3) | counted(10, 2, temperature="1+"),
        counted(100_000, 0) | counted(100_000, 0, temperature="1+"),
    ),
    Case(
        "seven-requests-at-each",
        counted(7, 0) | counted(7, 0, temperature="0.3-0.5") | counted(7, 0, temperature="1+"),
        counted(100, 0)
        | counted(100, 0, temperature="0.3-0.5")
        | counted(100, 0, temperature="1+"),
    ),
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
