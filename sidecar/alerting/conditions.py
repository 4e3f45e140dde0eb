"""What the direct push alerts on, without Prometheus: a table over the report's judgements, which compares nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sidecar.analysis.report import ModelReport, Report
from sidecar.analysis.verdict import Judgement, Verdict
from sidecar.wording.answer import answer
from sidecar.wording.notes import model_notes


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule's condition that holds: its labels, the value that the alert's text quotes, and the annotation context.

    ``rule`` is a key of ``load_rules``.
    """

    rule: str
    labels: Mapping[str, str]
    value: float = 0.0
    context: str = ""


def conditions(report: Report) -> Iterator[Condition]:
    """Every condition that holds: on vLLM as a whole, on a model, or on one of a model's temperatures."""
    if not report.scrape.up:
        rule = "SpecDecodeVLLMNeverUp" if report.scrape.last_scrape is None else "SpecDecodeVLLMDown"
        yield Condition(rule, {}, context=_page_answer(report))
    for model in report.models:
        context = _context(report, model)
        for rule, labels, value in _table(model):
            if value is not None:
                yield Condition(rule, {"model_name": model.model_name, **labels}, value, context)


def _table(model: ModelReport) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    """Each rule with its additional labels and its value; None if its condition does not hold."""
    whole, breaches = model.judgement, model.breaches
    yield "SpecDecodeAcceptanceLow", {}, _low(whole, loses=True)
    yield "SpecDecodeAcceptanceLow/info", {}, _low(whole, loses=False)
    yield "SpecDecodeAcceptanceCollapsed", {}, whole.acceptance if whole.has_collapsed else None
    yield "SpecDecodeSlowerThanPlain", {}, _slower(whole)
    yield "SpecDecodeAcceptanceP10Low", {}, breaches.acceptance_p10
    yield "SpecDecodeLatencyGapWide", {}, breaches.latency_gap_growth
    yield "SpecDecodeKVCachePressure", {}, breaches.kv_cache_usage
    for temperature in model.temperatures:
        labels = {"temperature": temperature.temperature}
        yield "SpecDecodeAcceptanceLowAtTemperature", labels, _low(temperature.judgement, loses=True)
        yield "SpecDecodeSlowerThanPlainAtTemperature", labels, _slower(temperature.judgement)


def _low(judgement: Judgement, *, loses: bool) -> float | None:
    """The acceptance rate if it is low and the verdict in force is net negative or, without ``loses``, is not."""
    return judgement.acceptance if judgement.is_low and (judgement.verdict is Verdict.NET_NEGATIVE) == loses else None


def _slower(judgement: Judgement) -> float | None:
    speedup = judgement.evidence.speedup
    return speedup.value if speedup is not None and judgement.by_speedup is Verdict.NET_NEGATIVE else None


def _context(report: Report, model: ModelReport) -> str:
    """What the page says of a model: the answer, and one line for each note that is not in it already."""
    answered = _page_answer(replace(report, models=(model,)))
    return "\n".join((answered, *(note for note in model_notes(model) if note not in answered)))


def _page_answer(report: Report) -> str:
    shown = answer(report)
    return f"{shown.text} {shown.why}".strip()
