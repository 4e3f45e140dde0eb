"""The one sentence at the top of the page: does it pay? It says what was judged, and judges nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.report import ModelReport, Report, TemperatureReport
from sidecar.analysis.speedup import Speedup
from sidecar.analysis.verdict import Judgement, Verdict
from sidecar.export.page.text import milliseconds, percent

TONES: Final = {
    Verdict.NET_POSITIVE: "good",
    Verdict.BREAK_EVEN: "even",
    Verdict.NET_NEGATIVE: "bad",
    Verdict.INSUFFICIENT_DATA: "mute",
}
_ON_AVERAGE: Final = {
    Verdict.NET_NEGATIVE: "does not pay",
    Verdict.BREAK_EVEN: "roughly breaks even",
    Verdict.NET_POSITIVE: "pays",
}

Judged = Mapping[str, TemperatureReport]  # by the name that tells it apart on the page


@dataclass(frozen=True, slots=True)
class Answer:
    """The text, its colour (a key of the style sheet), and the reason."""

    text: str
    tone: str
    why: str


def answer(report: Report) -> Answer:
    """What the report comes to."""
    scrape = report.scrape
    if not scrape.up:
        error = scrape.last_error
        why = f"{error}. {error.remedy}" if error else "The last successful poll is too old."
        return Answer("vLLM's metrics cannot be read.", "bad", why)
    drafting = [model for model in report.models if model.judgement.evidence.window.draft_tokens]
    if not drafting:
        why = "No draft tokens in the window; a sidecar that has just started needs two polls to see any."
        return Answer("Nothing is being drafted.", "mute", why)
    for model in drafting:
        if model.judgement.has_collapsed:
            text = f"Almost no draft token{_of(model, drafting)} is accepted."
            return Answer(text, "bad", model.judgement.advice or "")
    judged = dict(_judged(drafting))
    if not judged:
        return _overall(drafting)
    if all(one.judgement.by_speedup is not None and one.speedup is not None for one in judged.values()):
        return _by_time(judged, drafting)
    return _by_temperature(judged)


def _judged(models: Sequence[ModelReport]) -> Iterator[tuple[str, TemperatureReport]]:
    for model in models:
        for one in model.temperatures:
            if one.judgement.verdict is not Verdict.INSUFFICIENT_DATA:
                yield f"{one.temperature}{_of(model, models)}", one


def _of(model: ModelReport, models: Sequence[ModelReport]) -> str:
    """A single model needs no name."""
    return f" ({model.model_name})" if len(models) > 1 else ""


def _with(judged: Judged, verdict: Verdict) -> list[str]:
    return [label for label, one in judged.items() if one.judgement.verdict is verdict]


def _by_temperature(judged: Judged) -> Answer:
    losing, even = _with(judged, Verdict.NET_NEGATIVE), _with(judged, Verdict.BREAK_EVEN)
    if losing:
        share = percent(sum(seen(judged[label].judgement).share for label in losing))
        has = "has" if len(losing) == 1 else "have"
        text = f"Speculation loses at {_temperatures(losing)}, which {has} {share} of the draft tokens."
        return Answer(text, "bad", _listed(judged))
    if even:
        return Answer(f"Speculation roughly breaks even at {_temperatures(even)}.", "even", _listed(judged))
    return Answer("Speculation pays at every temperature that can be judged.", "good", _listed(judged))


def _temperatures(labels: Sequence[str]) -> str:
    *others, last = labels
    return f"temperatures {', '.join(others)} and {last}" if others else f"temperature {last}"


def _by_time(judged: Judged, models: Sequence[ModelReport]) -> Answer:
    """Time saved and lost per token, if plain decoding was measured."""
    saved, lost, even = (
        _with(judged, verdict) for verdict in (Verdict.NET_POSITIVE, Verdict.NET_NEGATIVE, Verdict.BREAK_EVEN)
    )
    parts = [f"{what} {_each(judged, labels)}" for what, labels in (("saves", saved), ("costs", lost)) if labels]
    if even:
        parts.append(f"roughly breaks even at T {', '.join(even)}")
    times = ", ".join(f"{label}: {one.speedup.ratio:.2f}" for label, one in judged.items() if one.speedup)
    tone = "bad" if lost else "even" if even else "good"
    text = f"Per token, speculation {'; '.join(parts)}{_at_load(models)}."
    return Answer(text, tone, f"Times as fast as plain decoding, by temperature: {times}. {_listed(judged)}")


def _each(judged: Judged, labels: Sequence[str]) -> str:
    """Milliseconds per token at each temperature."""
    speedups = {label: judged[label].speedup for label in labels}
    return ", ".join(f"{_gained(speedup)} at T {label}" for label, speedup in speedups.items() if speedup)


def _overall(models: Sequence[ModelReport]) -> Answer:
    """The worst verdict on a model as a whole."""
    is_adaptive = any(model.judgement.evidence.is_adaptive for model in models)
    split = models[0].split_withheld or ("" if is_adaptive else "No temperature has enough traffic to be judged.")
    why = f"Acceptance is {_acceptance(models)} over all requests. {split}".strip()
    for verdict, said in _ON_AVERAGE.items():
        found = [model for model in models if model.judgement.verdict is verdict]
        if not found:
            continue
        which = f" for {', '.join(model.model_name for model in found)}" if len(found) < len(models) else ""
        faster = found[0].speed.speedup if found[0].speed and found[0].judgement.by_speedup else None
        if faster is None:
            return Answer(f"Speculation {said} on average{which}.", TONES[verdict], why)
        what = said if verdict is Verdict.BREAK_EVEN else effect(faster)
        text = f"Speculation {what} on average{which}{_at_load(found)}."
        return Answer(text, TONES[verdict], f"{times_as_fast(faster)}. {why}")
    if is_adaptive:
        return Answer("Acceptance cannot tell whether speculation pays, and no speedup is known.", "mute", why)
    drafts = sum(model.judgement.evidence.window.drafts for model in models)
    return Answer("Too little traffic to judge.", "mute", f"{why} {drafts:,.0f} drafts in the window.")


def _acceptance(models: Sequence[ModelReport]) -> str:
    """Each model's overall acceptance; a single model needs no name."""
    return ", ".join(f"{percent(one.judgement.evidence.window.rate)}{_of(one, models)}" for one in models)


def _at_load(models: Sequence[ModelReport]) -> str:
    """The load for which this holds; several models have several."""
    steps = models[0].speed.steps if len(models) == 1 and models[0].speed else None
    return f", with {steps.running:.0f} running" if steps else ""


def _listed(judged: Judged) -> str:
    parts = [f"{label}: {percent(one.judgement.acceptance)}" for label, one in judged.items()]
    return f"Acceptance by temperature: {', '.join(parts)}."


def seen(judgement: Judgement) -> Acceptance:
    """The window that was judged or, below the gates, the recent one."""
    return judgement.judged or judgement.evidence.window


def times_as_fast(speedup: Speedup) -> str:
    """A phrase, with twice the standard error."""
    return f"{speedup.ratio:.2f} ± {2 * speedup.error:.2f} times as fast as plain decoding"


def effect(speedup: Speedup) -> str:
    """A phrase."""
    return f"{'saves' if speedup.ratio >= 1 else 'costs'} {_gained(speedup)} a token"


def _gained(speedup: Speedup) -> str:
    """The difference per token between plain and actual, without its sign."""
    return milliseconds(abs(speedup.plain_seconds - speedup.actual_seconds))
