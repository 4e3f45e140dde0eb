"""The tree as JSON."""

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.evidence import Acceptance, Evidence
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.report import EngineReport, ModelReport, Report
from sidecar.errors import TimedOut
from sidecar.export.status import as_json, status
from tests.export import reports

ELSEWHERE = {
    Evidence: {"window", "hour", "past", "speedup", "costs", "speculation"},
    EngineReport: {"acceptance"},
    ModelReport: {"sampling", "spreads", "structured_undrafted"},  # nothing shows them
}


def read(report, **environment):
    return json.loads(json.dumps(status(reports.shown(report, **environment)), allow_nan=False))


def test_every_field_of_the_tree_is_there_under_its_name():
    """So the JSON has what the page has, without a second declaration; but no number twice."""
    report = reports.report(
        reports.timed_model(reports.timed("0", Verdict.NET_POSITIVE, 0.7, 30, 20))
    )

    def missing(value, json):
        if is_dataclass(value) and not isinstance(value, type):
            for field in fields(value):
                if field.name in ELSEWHERE.get(type(value), ()):
                    assert field.name not in json
                    continue
                if type(value) is Judgement and field.name == "judged":
                    continue  # says which of the windows it is
                if field.name not in json:
                    yield f"{type(value).__name__}.{field.name}"
                yield from missing(getattr(value, field.name), json.get(field.name))
        elif isinstance(value, tuple) and isinstance(json, list):
            for item, json_item in zip(value, json, strict=True):
                yield from missing(item, json_item)

    status_json = read(report, THRESHOLDS__KV_CACHE_USAGE="0.8")

    assert status_json["thresholds"]["kv_cache_usage"] == 0.8
    assert {field.name for field in fields(Report)} <= set(status_json)
    assert list(missing(report, status_json)) == []


def test_a_number_is_there_once_and_judged_names_its_window():
    """A script that reads a rate need not ask which of five is meant."""
    recent = Acceptance(seconds=300.0, drafts=1234.0, draft_tokens=3702.0, accepted_tokens=1777.0)
    hour = Acceptance(seconds=3600.0, drafts=9876.0, draft_tokens=29628.0, accepted_tokens=14321.0)
    evidence = Evidence(window=recent, hour=hour)
    judged = replace(reports.judgement(Verdict.NET_POSITIVE, 0.5), evidence=evidence, judged=hour)
    (model,) = read(reports.report(reports.model(judgement=judged)))["models"]

    def values(value):
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                yield from values(item)
        else:
            yield value

    del model["tables"], model["engines"]
    every = [*values(model)]
    assert every.count(1777.0) == 1
    assert every.count(14321.0) == 1
    assert every.count(hour.rate) == 1
    assert model["judgement"]["judged"] == "hour"
    assert model[model["judgement"]["judged"]]["rate"] == hour.rate


def test_findings_are_there_in_numbers_and_in_words():
    """The numbers have the names that the finding's own class gives them."""
    (model,) = read(reports.report(reports.model(findings=(reports.STRUCTURED,))))["models"]
    (finding,), (explanation,) = model["findings"], model["explanations"]
    numbers = {"group": "structured", "rate": 0.45, "others": 0.7, "error": 0.02}

    assert finding.items() >= ({"code": "structured_output"} | numbers).items()
    assert explanation["code"] == "structured_output"
    assert set(explanation) == {
        *("code", "what", "remedy", "expect", "verify"),
        *("config", "option"),
    }


def test_a_failed_poll_says_what_to_do():
    status_json = read(reports.report(scrape=reports.down(TimedOut("incomplete after 5 s"))))

    assert status_json["scrape"]["last_error"] == {
        "reason": "timeout",
        "message": "incomplete after 5 s",
        "remedy": "vLLM is overloaded or stuck; scrape_timeout sets how long to wait.",
    }


@dataclass(frozen=True)
class Odd:
    ratio: float
    by: dict

    @property
    def twice(self):
        return 2 * self.ratio


def test_values_that_json_cannot_have_are_converted():
    limitations = frozenset({Limitation.NO_POSITIONS, Limitation.DIFFUSION})

    assert as_json(datetime(1970, 1, 1, 1, tzinfo=UTC)) == 3600
    assert as_json(Odd(float("nan"), {("a", "b"): (1, None), 0.5: limitations})) == {
        "ratio": None,
        "by": {"a b": [1, None], "0.5": ["diffusion", "no_positions"]},
        "twice": None,
    }
