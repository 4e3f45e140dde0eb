"""The one sentence at the top of the page: does it pay?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    if judged:
        return _by_temperature(judged)
    known = [engine["acceptance"] for engine in target["engines"] if engine["acceptance"]]
    if not known:
        return Answer("Nothing is drafted at present.", "mute", "No draft tokens in the window.")
    accepted, drafted = (sum(one[name] for one in known) for name in ("accepted_tokens", "draft_tokens"))
    return _overall(min(accepted / drafted, 1.0), thresholds)


def _by_temperature(judged: Mapping[str, Mapping[str, Any]]) -> Answer:
    total = sum(work["draft_tokens"] for work in judged.values()) or 1.0
    by_verdict = {
        verdict: [label for label, work in judged.items() if work["verdict"] == verdict]
        for verdict in ("net_negative", "break_even", "net_positive")
    }
    losing = by_verdict["net_negative"]
    share = sum(judged[label]["draft_tokens"] for label in losing) / total
    if not losing and not by_verdict["break_even"]:
        return Answer("Speculation pays at every temperature that can be judged.", "good", _listed(judged))
    if not losing:
        return Answer(f"Speculation about breaks even at {_named(by_verdict['break_even'])}.", "even", _listed(judged))
    if len(losing) == len(judged):
        return Answer("Speculation does not pay.", "bad", _listed(judged))
    text = f"Speculation loses at {_named(losing)}: {share:.0%} of the draft tokens."
    return Answer(text, "bad", _listed(judged))


def _overall(rate: float, thresholds: Mapping[str, float]) -> Answer:
    why = f"Acceptance is {rate:.0%} over all requests; which temperatures lose needs a request source."
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
