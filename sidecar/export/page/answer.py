"""The one sentence at the top of the page: does it pay?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.export.request_notes import unattributed

TONES = {"net_positive": "good", "break_even": "even", "net_negative": "bad", "insufficient_data": "mute"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said, how it is coloured (a key of the style sheet), and why."""

    text: str
    tone: str
    why: str


def answer(target: Mapping[str, Any], thresholds: Mapping[str, float]) -> Answer:
    """The answer for one server, from its status."""
    if not target["up"]:
        error = target["last_error"]
        why = f"{error['message']}. {error['remedy']}" if error else "It has not been polled lately."
        return Answer("vLLM's numbers can't be had.", "bad", why)
    models = (target["requests"] or {"models": []})["models"]
    found = [
        (model["model_name"], temperature, work)
        for model in models
        for temperature, work in model["temperatures"].items()
        if work["verdict"] != "insufficient_data"
    ]
    several = len({model for model, _, _ in found}) > 1
    judged = {f"{temperature} ({model})" if several else temperature: work for model, temperature, work in found}
    rate = _rate(target)
    if judged:
        said = _by_temperature(judged, sum(_drafted(model) for model in models))
        return said if _is_seen(models, thresholds) else _of_what_is_seen(said, models, rate)
    if rate is None:
        return Answer("Nothing is drafted at present.", "mute", "No draft tokens in the window.")
    return _overall(rate, _why_no_split(target["requests"]), thresholds)


def _rate(target: Mapping[str, Any]) -> float | None:
    """Acceptance over all engines, each with the weight of what it drafts."""
    known = [engine["acceptance"] for engine in target["engines"] if engine["acceptance"]]
    accepted, drafted = (sum(one[name] for one in known) for name in ("accepted_tokens", "draft_tokens"))
    return min(accepted / drafted, 1.0) if drafted else None


def _drafted(model: Mapping[str, Any]) -> float:
    return float(sum(work["draft_tokens"] for work in model["temperatures"].values()))


def _is_seen(models: Sequence[Mapping[str, Any]], thresholds: Mapping[str, float]) -> bool:
    """Whether enough of the traffic is attributed to speak of all of it."""
    return all(model["coverage"] is None or model["coverage"] >= thresholds["coverage"] for model in models)


def _of_what_is_seen(said: Answer, models: Sequence[Mapping[str, Any]], rate: float | None) -> Answer:
    """``said`` with its limits; what holds for a part of the traffic is no good news yet."""
    seen = {model["model_name"]: model["coverage"] for model in models if model["coverage"] is not None}
    if len(seen) == 1:
        part = f"the {next(iter(seen.values())):.0%} of the traffic that is seen"
    else:
        shares = ", ".join(f"{name}: {coverage:.0%}" for name, coverage in seen.items())
        part = f"the traffic that is seen ({shares})"
    text = f"In {part}, {said.text[0].lower()}{said.text[1:]}"
    overall = "" if rate is None else f" Over all requests, seen or not, it is {rate:.0%}."
    return Answer(text, "mute" if said.tone == "good" else said.tone, f"{said.why}{overall}")


def _by_temperature(judged: Mapping[str, Mapping[str, Any]], total: float) -> Answer:
    """``total`` are the draft tokens of all buckets, judged or not."""
    by_verdict = {
        verdict: [label for label, work in judged.items() if work["verdict"] == verdict]
        for verdict in ("net_negative", "break_even", "net_positive")
    }
    losing = by_verdict["net_negative"]
    share = sum(judged[label]["draft_tokens"] for label in losing) / (total or 1.0)
    if not losing and not by_verdict["break_even"]:
        return Answer("Speculation pays at every temperature that can be judged.", "good", _listed(judged))
    if not losing:
        return Answer(f"Speculation about breaks even at {_named(by_verdict['break_even'])}.", "even", _listed(judged))
    if len(losing) == len(judged):
        return Answer("Speculation does not pay.", "bad", _listed(judged))
    text = f"Speculation loses at {_named(losing)}: {share:.0%} of attributed drafts."
    return Answer(text, "bad", _listed(judged))


def _why_no_split(requests: Mapping[str, Any] | None) -> str:
    if requests is None:
        return "which temperatures lose needs a request source"
    if not requests["events"]:
        reasons = ", ".join(sorted(reason for reason, count in requests["dropped"].items() if count))
        dropped = f": what it told was dropped ({reasons})" if reasons else ""
        return f"the source {requests['source']} has told of no request yet{dropped}"
    if not requests["ended"]:
        return f"of {requests['events']:,} requests since the start none has been attributed lately"
    if not requests["attributed"]:
        return unattributed(requests["ended"])
    return "no temperature has had enough requests to be judged"


def _overall(rate: float, split: str, thresholds: Mapping[str, float]) -> Answer:
    why = f"Acceptance is {rate:.0%} over all requests; {split}."
    if rate < thresholds["acceptance_net_negative"]:
        return Answer("Speculation does not pay on average.", "bad", why)
    if rate < thresholds["acceptance_break_even"]:
        return Answer("Speculation about breaks even on average.", "even", why)
    return Answer("Speculation pays on average.", "good", why)


def _named(labels: Sequence[str]) -> str:
    """Temperatures in a sentence; requests may give none."""
    given = [label for label in labels if label not in _WITHOUT]
    parts = ["temperature " + ", ".join(given)] if given else []
    return " and ".join(parts + [_WITHOUT[label] for label in labels if label in _WITHOUT])


_WITHOUT = {"default": "the default temperature", "unknown": "an unknown temperature"}


def _listed(judged: Mapping[str, Mapping[str, Any]]) -> str:
    parts = [f"{label}: {work['acceptance']:.0%}" for label, work in judged.items() if work["acceptance"] is not None]
    return "Acceptance by temperature: " + ", ".join(parts) + "."
