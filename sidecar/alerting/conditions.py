"""What the direct push alerts on, without Prometheus.

These are the shipped rules, with a table over the report's judgements and the rows of
``analysis/breaches.py``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import yaml

from sidecar.alerting.past import Past, drafts_nothing
from sidecar.analysis.breaches import LIMITS
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.report import ModelReport, Report
from sidecar.errors import BadStatus, Interrupted, TimedOut, Unreachable
from sidecar.findings.catalog import explanations
from sidecar.findings.ending import EndsBadly
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import advised
from sidecar.requests.tables import EMPTY, LOOP
from sidecar.settings.groups import Thresholds
from sidecar.shipped import shipped
from sidecar.wording.answer import answer
from sidecar.wording.notes import model_notes

# What a summary or a description may quote; anything else needs Prometheus.
_QUOTE: Final = re.compile(
    r"\{\{ (?:\$labels\.(\w+)|index \$labels \"(\w+)\""
    r"|\$value \| (?:humanizePercentage|printf \"(%\.\d[gf])\")) \}\}"
)
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
# The errors of a scrape that mean that vLLM may be down. After any other, something responded.
NO_ANSWER: Final = frozenset(
    error.reason for error in (BadStatus, Interrupted, TimedOut, Unreachable)
)
_DOWN_SECONDS: Final = 180.0  # as in the rule, whose `for` would begin anew with Prometheus
# The rules on rates and times count the full minutes at which they hold, both ends of ten minutes
# included, for the same reason.
_COUNTED: Final = re.compile(r"count_over_time\([\w:]+\[25m:1m\]\) >= (\d+)")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Alert(StrEnum):
    """The alerts that follow from more than one value and its threshold."""

    COLLAPSED = "SpecDecodeAcceptanceCollapsed"
    LOW = "SpecDecodeAcceptanceLow"
    LOW_AT_TEMPERATURE = "SpecDecodeAcceptanceLowAtTemperature"
    SLOWER = "SpecDecodeSlowerThanPlain"
    SLOWER_AT_TEMPERATURE = "SpecDecodeSlowerThanPlainAtTemperature"
    OUTPUT_WORSE = "SpecDecodeOutputWorse"
    NOT_SPECULATING = "SpecDecodeNotSpeculating"
    STALLED = "SpecDecodeEngineStalled"
    DOWN = "SpecDecodeVLLMDown"
    NEVER_UP = "SpecDecodeVLLMNeverUp"
    UNREADABLE = "SpecDecodeVLLMUnreadable"


PUSHED: Final = frozenset({*Alert, *(limit.alert for limit in LIMITS)})
"""The alerts that one pod's report tells, by name."""
NOT_PUSHED: Final = frozenset({f"{Alert.DOWN}/warning"})
"""Of these, the rules (``name/severity``) that compare a pod with others: its push pages."""
# The critical alerts that one cause can raise: of a model, one at a time.
ONE_CAUSE: Final = frozenset({Alert.COLLAPSED, Alert.LOW, Alert.SLOWER})


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert.

    Its condition must hold for ``wait`` seconds, and the alert outlasts it by ``keep`` seconds.
    ``first`` is what to do first, in a few words; only those that page have it.
    """

    name: str
    labels: Mapping[str, str]
    wait: float
    keep: float
    summary: str
    description: str
    first: str = ""

    def text(self, template: str, labels: Mapping[str, str], value: float) -> str:
        """``summary`` or ``description`` with an alert's labels and value filled in."""

        def quoted(match: re.Match[str]) -> str:
            always, maybe, form = match.groups()
            if label := always or maybe:
                return labels.get(label, "")
            return form % value if form else f"{100 * value:.4g}%"

        return _QUOTE.sub(quoted, template)


def load_rules() -> dict[str, Rule]:
    """All alerts by name; of several with one name, the later are under ``name/severity``."""
    groups = yaml.safe_load(shipped("alerts.yaml").read_text(encoding="utf-8"))["groups"]
    rules: dict[str, Rule] = {}
    for entry in (entry for group in groups for entry in group["rules"]):
        name = entry["alert"]
        labels = entry["labels"]
        texts = entry["annotations"]
        key = f"{name}/{labels['severity']}" if name in rules else name
        rules[key] = Rule(
            name,
            labels,
            wait=_wait(entry),
            keep=_seconds(entry.get("keep_firing_for", "0s")),
            summary=texts["summary"],
            description=texts["description"],
            first=texts.get("first", ""),
        )

    return rules


def _wait(entry: Mapping[str, str]) -> float:
    """Seconds for which a rule's condition must hold."""
    counted = _COUNTED.search(entry["expr"])
    return 60.0 * (int(counted[1]) - 1) if counted else _seconds(entry.get("for", "0s"))


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * _UNITS[duration[-1]]


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule's condition that holds.

    It has its labels, the value that the alert's text quotes, and the annotation context. ``rule``
    is a key of ``load_rules``.
    """

    rule: str
    labels: Mapping[str, str]
    value: float = 0.0
    context: str = ""


def conditions(
    report: Report,
    past: Past,
    thresholds: Thresholds,
    *,
    paged: Mapping[str, str] = _NOTHING,
    pace: float = 1.0,
) -> Iterator[Condition]:
    """Every condition that holds: on vLLM as a whole, on a model, or on one of its temperatures.

    ``past`` has observed this report. ``paged`` is ``Tracker.paged``. ``pace`` multiplies how long
    vLLM must be down.
    """
    if rule := _on_vllm(report, past, thresholds, pace):
        yield Condition(rule, _labels(rule, report), context=_page_answer(report))

    for model in report.models:
        context = _context(report, model)
        for rule, labels, value in _table(model, past, thresholds, paged.get(model.model_name)):
            if value is None:
                continue
            is_on_replies = rule == Alert.OUTPUT_WORSE
            said = _context_of_replies(past.replies(model)) if is_on_replies else context
            yield Condition(rule, {"model_name": model.model_name, **labels}, value, said)


def _labels(rule: str, report: Report) -> Mapping[str, str]:
    """An outage is a model's, as in the rules; of what is never read nobody knows which."""
    if rule == Alert.DOWN and report.models:
        return {"model_name": report.models[0].model_name}
    return _NOTHING


def _on_vllm(report: Report, past: Past, thresholds: Thresholds, pace: float) -> str | None:
    """The rule on vLLM itself whose condition holds, if any does."""
    if past.was_stalled:
        return Alert.STALLED  # also while vLLM is down after it: one cause, one page

    scrape = report.scrape
    # Without an error, no poll has ended yet.
    if scrape.up or scrape.last_error is None:
        return None
    if scrape.last_error.reason not in NO_ANSWER:
        return Alert.UNREADABLE

    if scrape.last_scrape is not None:
        is_down = report.at - scrape.last_scrape >= pace * _DOWN_SECONDS
        return Alert.DOWN if is_down else None

    waited = report.at - (report.at if past.began is None else past.began)
    is_late = waited > pace * thresholds.startup_time
    return Alert.NEVER_UP if is_late else None


def _table(
    model: ModelReport, past: Past, thresholds: Thresholds, paged: str | None
) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    """Each rule with its additional labels and its value; None if its condition does not hold."""
    yield from _losing(model, past, thresholds, paged)
    worse = None if model.judgement.has_collapsed else _bad_endings(past.replies(model))
    yield Alert.OUTPUT_WORSE, {}, worse  # a collapse says so itself
    yield Alert.NOT_SPECULATING, {}, 1.0 if drafts_nothing(past.drafting(model)) else None
    for alert, value in model.breaches.items():
        yield alert, {}, value

    for temperature in past.temperatures(model):
        labels = {"temperature": temperature.temperature}
        judgement = temperature.judgement
        yield Alert.LOW_AT_TEMPERATURE, labels, _low(judgement, loses=True)
        yield Alert.SLOWER_AT_TEMPERATURE, labels, _slower(judgement)


def _bad_endings(model: ModelReport) -> float | None:
    """The share of bad endings, if it is clearly above the usual."""
    endings = model.endings
    is_told = any(isinstance(finding, EndsBadly) for finding in advised(model.findings))
    if endings is None or not is_told:
        return None
    return endings.shares[LOOP] + endings.shares[EMPTY]


def _losing(
    model: ModelReport, past: Past, thresholds: Thresholds, paged: str | None
) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    """The alerts that one cause can raise: at most one of the critical ones.

    The one that fires already, ``paged``, stays it, whatever else becomes known. Else, where the
    rate collapsed, that is the alert; else a measured time decides; else the rate does.
    """
    whole = model.judgement
    is_measured = whole.by_speedup is not None
    low = None if is_measured else _low(whole, loses=True)
    is_critical = low is not None and thresholds.acceptance_low_is_critical
    has_dropped = low is not None and past.has_dropped(model)
    is_alarming = (has_dropped or is_critical) and not whole.has_collapsed
    stays_low = paged == Alert.LOW and _low(whole, loses=True) is not None

    values: dict[str, float | None] = {
        Alert.COLLAPSED: whole.acceptance if whole.has_collapsed else None,
        Alert.LOW: whole.acceptance if is_alarming or stays_low else None,
        Alert.SLOWER: _slower(whole),
    }
    if paged is not None:
        page = paged
    elif whole.has_collapsed:
        page = Alert.COLLAPSED
    else:
        page = Alert.LOW if is_alarming else Alert.SLOWER

    yield page, {}, values[page]

    if not is_alarming and paged != Alert.LOW:
        yield f"{Alert.LOW}/warning", {}, low

    information = whole.acceptance if whole.is_low and low is None else None
    yield f"{Alert.LOW}/info", {}, information


def _low(judgement: Judgement, *, loses: bool) -> float | None:
    """The acceptance rate if it is low and the verdict in force is net negative, else None.

    Without ``loses``, the verdict in force must not be net negative.
    """
    is_net_negative = judgement.verdict is Verdict.NET_NEGATIVE
    return judgement.acceptance if judgement.is_low and is_net_negative == loses else None


def _slower(judgement: Judgement) -> float | None:
    speedup = judgement.evidence.speedup
    if speedup is None or judgement.by_speedup is not Verdict.NET_NEGATIVE:
        return None
    return speedup.ratio


def _context(report: Report, model: ModelReport) -> str:
    """What the page says of a model: the answer, why, and the notes.

    Each note that is not in the answer already has a line.
    """
    answered = _page_answer(replace(report, models=(model,)))
    why = [_why(finding) for finding in explanations(model)[:1] if finding.remedy]
    notes = [note for note in model_notes(model) if note not in answered]
    return "\n".join((answered, *why, *notes))


def _context_of_replies(model: ModelReport) -> str:
    """How replies end and what is usual; nothing on drafts, whose numbers loops flatter."""
    codes = {finding.code for finding in advised(model.findings) if isinstance(finding, EndsBadly)}
    return "\n".join(one.what for one in explanations(model) if one.code in codes)


def _why(finding: Explanation) -> str:
    """The finding and its remedy, with what to paste."""
    text = f"Why: {finding.what} {finding.remedy}"
    return f"{text}\n{finding.option}" if finding.option else text


def _page_answer(report: Report) -> str:
    shown = answer(report)
    return f"{shown.text} {shown.why}".strip()


Key = tuple[str, frozenset[tuple[str, str]]]  # an alert's identity: its rule and its labels

_RESOLVED_SECONDS: Final = 900.0  # how long a resolved alert is kept, as in Prometheus


@dataclass(slots=True)
class Course:
    """One alert over time.

    It fires from ``started`` until ``ended``, Unix seconds; each is None until then. ``since`` and
    ``held`` are in monotonic seconds: when the condition began to hold, and when it last held; once
    the alert has ended, ``held`` is when it ended.
    """

    rule: Rule
    condition: Condition
    since: float
    held: float
    started: float | None = None
    ended: float | None = None


class Tracker:
    """Follows alerts from evaluation to evaluation."""

    def __init__(self, rules: Mapping[str, Rule], pace: float = 1.0) -> None:
        """``pace`` multiplies how long conditions must hold and how long alerts outlast them."""
        self._rules = rules
        self._pace = pace
        self._courses: dict[Key, Course] = {}

    def update(self, conditions: Iterable[Condition], now: float, wall: float) -> dict[Key, Course]:
        """Takes in the conditions that hold at ``now``; returns the alerts that fire or have fired.

        ``now`` is in monotonic seconds; ``wall`` is the same in Unix seconds.
        """
        current = {
            (condition.rule, frozenset(condition.labels.items())): condition
            for condition in conditions
        }

        for key in self._courses.keys() - current.keys():
            self._fails(key, self._courses[key], now, wall)

        for key, condition in current.items():
            self._holds(key, condition, now, wall)

        return {key: course for key, course in self._courses.items() if course.started is not None}

    def paged(self) -> dict[str, str]:
        """By model, which of the alerts in ``ONE_CAUSE`` fires."""
        return {
            course.condition.labels["model_name"]: name
            for (name, _), course in self._courses.items()
            if name in ONE_CAUSE and course.started is not None and course.ended is None
        }

    def _holds(self, key: Key, condition: Condition, now: float, wall: float) -> None:
        course = self._courses.get(key)
        if course is None or course.ended is not None:
            course = Course(self._rules[condition.rule], condition, now, now)
            self._courses[key] = course
        course.condition = condition
        course.held = now
        if course.started is None and now - course.since >= self._pace * course.rule.wait:
            course.started = wall

    def _fails(self, key: Key, course: Course, now: float, wall: float) -> None:
        if course.started is None or (
            course.ended is not None and now - course.held > _RESOLVED_SECONDS
        ):
            del self._courses[key]
        elif course.ended is None and now - course.held >= self._pace * course.rule.keep:
            course.ended = wall
            course.held = now
