"""The one sentence at the top of the page: does it pay?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.export.request_notes import unattributed

TONES = {"net_positive": "good", "break_even": "even", "net_negative": "bad", "insufficient_data": "mute"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The text, its colour (a key of the style sheet), and the reason."""

    text: str
    tone: str
    why: str


def answer(target: Mapping[str, Any]) -> Answer:
    """The answer for one server, from its status."""
    if not target["up"]:
        error = target["last_error"]
        why = f"{error['message']}. {error['remedy']}" if error else "The last successful poll is too old."
        return Answer("vLLM's metrics cannot be read.", "bad", why)
    models = (target["requests"] or {"models": []})["models"]
    found = [
        (model["model_name"], temperature, work)
        for model in models
        for temperature, work in model["temperatures"].items()
        if work["verdict"] != "insufficient_data"
    ]
    several = len({model for model, _, _ in found}) > 1
    judged = {f"{temperature} ({model})" if several else temperature: work for model, temperature, work in found}
    drafting = [model for model in target["models"] if model["acceptance"] is not None]
    if judged and all(work["basis"] == "speedup" for work in judged.values()):
        said = _by_time(judged, target["models"])
    elif judged:
        buckets = [work for model in models for work in model["temperatures"].values()]
        said = _by_temperature(judged, sum(work["draft_tokens"] for work in buckets))
    if judged:
        is_covered = all(model["is_covered"] for model in target["models"])
        return said if is_covered else _of_what_is_seen(said, models, drafting)
    if not drafting:
        return Answer("Nothing is being drafted.", "mute", "No draft tokens in the window.")
    if all(model["basis"] == "speedup" for model in drafting):
        return _overall_by_time(drafting, _why_no_split(target["requests"]))
    return _overall(drafting, _why_no_split(target["requests"]))


def _acceptance(drafting: Sequence[Mapping[str, Any]]) -> str:
    """Each model's overall acceptance; a single model needs no name."""
    if len(drafting) == 1:
        return f"{drafting[0]['acceptance']:.0%}"
    return ", ".join(f"{model['acceptance']:.0%} ({model['model_name']})" for model in drafting)


def _of_what_is_seen(
    said: Answer, models: Sequence[Mapping[str, Any]], drafting: Sequence[Mapping[str, Any]]
) -> Answer:
    """``said`` with its limits; what holds for only part of the traffic is not good news yet."""
    seen = {model["model_name"]: model["coverage"] for model in models if model["coverage"] is not None}
    if len(seen) == 1:
        part = f"the {next(iter(seen.values())):.0%} of the traffic that is seen"
    else:
        shares = ", ".join(f"{name}: {coverage:.0%}" for name, coverage in seen.items())
        part = f"the traffic that is seen ({shares})"
    text = f"In {part}, {said.text[0].lower()}{said.text[1:]}"
    overall = f" Over all requests, seen or not, it is {_acceptance(drafting)}." if drafting else ""
    return Answer(text, "mute" if said.tone == "good" else said.tone, f"{said.why}{overall}")


def _by_temperature(judged: Mapping[str, Mapping[str, Any]], total: float) -> Answer:
    """``total`` is the draft tokens of all buckets, judged or not."""
    by_verdict = {
        verdict: [label for label, work in judged.items() if work["verdict"] == verdict]
        for verdict in ("net_negative", "break_even", "net_positive")
    }
    losing = by_verdict["net_negative"]
    share = sum(judged[label]["draft_tokens"] for label in losing) / (total or 1.0)
    if not losing and not by_verdict["break_even"]:
        return Answer("Speculation pays at every temperature that can be judged.", "good", _listed(judged))
    if not losing:
        return Answer(
            f"Speculation roughly breaks even at {_named(by_verdict['break_even'])}.", "even", _listed(judged)
        )
    if share > 0.995:  # temperatures that cannot be judged are not included
        return Answer("Speculation does not pay.", "bad", _listed(judged))
    text = f"Speculation loses at {_named(losing)}: {share:.0%} of attributed drafts."
    return Answer(text, "bad", _listed(judged))


def _by_time(judged: Mapping[str, Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> Answer:
    """Time saved and lost per token, if plain decoding was measured."""
    saved, lost, even = (
        [label for label, work in judged.items() if work["verdict"] == verdict]
        for verdict in ("net_positive", "net_negative", "break_even")
    )
    parts = [f"{what} {_each(judged, labels)}" for what, labels in (("saves", saved), ("costs", lost)) if labels]
    if even:
        parts.append(f"roughly breaks even at {_named(even)}")
    text = f"Speculation {', '.join(parts)}{_at_load(models)}."
    speedups = ", ".join(f"{label}: {work['speed']['speedup']:.2f} times" for label, work in judged.items())
    tone = "bad" if lost else "even" if even else "good"
    return Answer(text, tone, f"Plain time per token divided by the actual one: {speedups}. {_listed(judged)}")


def _each(judged: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> str:
    """Milliseconds per token at each temperature."""
    units = ["a token ", *[""] * len(labels)]
    return ", ".join(
        f"{gained_ms(judged[label]['speed'])} {unit}at {_WITHOUT.get(label, f'T {label}')}"
        for label, unit in zip(labels, units, strict=False)
    )


def _overall_by_time(drafting: Sequence[Mapping[str, Any]], split: str) -> Answer:
    worst = min(drafting, key=lambda model: float(model["speed"]["speedup"]))
    speed = worst["speed"]
    which = f" for {worst['model_name']}" if len(drafting) > 1 else ""
    what = {"net_positive": f"saves {gained_ms(speed)} a token", "net_negative": f"costs {gained_ms(speed)} a token"}
    text = f"Speculation {what.get(worst['verdict'], 'roughly breaks even')}{which} on average{_at_load([worst])}."
    faster = f"{speed['speedup']:.2f} ± {2 * speed['error']:.2f} times as fast as plain decoding"
    return Answer(text, TONES[worst["verdict"]], f"{faster}, acceptance {_acceptance(drafting)}; {split}.")


def gained_ms(speed: Mapping[str, Any]) -> str:
    """The difference in milliseconds per token between plain and actual, without its sign."""
    return f"{abs(speed['plain_seconds'] - speed['actual_seconds']) * 1000:.2g} ms"


def _at_load(models: Sequence[Mapping[str, Any]]) -> str:
    """The load for which this holds; several models have several."""
    running = [model["speed"]["requests_running"] for model in models if model["speed"]]
    return f", with {running[0]:.0f} running" if len(running) == 1 and running[0] else ""


def _why_no_split(requests: Mapping[str, Any] | None) -> str:
    if requests is None:
        return "which temperatures lose needs a request source"
    if not requests["events"]:
        reasons = ", ".join(sorted(reason for reason, count in requests["dropped"].items() if count))
        dropped = f": all its events were dropped ({reasons})" if reasons else ""
        return f"the source {requests['source']} has reported no request yet{dropped}"
    if not requests["ended"]:
        return f"{requests['events']:,} requests since the start, none attributed in the window"
    if not requests["attributed"]:
        return unattributed(requests["ended"])
    return "no temperature has enough requests to be judged"


def _overall(drafting: Sequence[Mapping[str, Any]], split: str) -> Answer:
    """The worst model's verdict."""
    why = f"Acceptance is {_acceptance(drafting)} over all requests; {split}."
    for verdict, text in _ON_AVERAGE.items():
        names = [model["model_name"] for model in drafting if model["verdict"] == verdict]
        if names:
            which = f" for {', '.join(names)}" if len(names) < len(drafting) else ""
            return Answer(f"{text}{which}.", TONES[verdict], why)
    drafts = sum(model["drafts"] for model in drafting)
    return Answer("Too little is being drafted to judge.", "mute", f"{why[:-1]}; {drafts:,.0f} drafts in the window.")


_ON_AVERAGE = {
    "net_negative": "Speculation does not pay on average",
    "break_even": "Speculation roughly breaks even on average",
    "net_positive": "Speculation pays on average",
}


def _named(labels: Sequence[str]) -> str:
    """Temperatures in a sentence; requests may specify none."""
    given = [label for label in labels if label not in _WITHOUT]
    parts = ["temperature " + ", ".join(given)] if given else []
    return " and ".join(parts + [_WITHOUT[label] for label in labels if label in _WITHOUT])


_WITHOUT = {"default": "the default temperature", "unknown": "an unknown temperature"}


def _listed(judged: Mapping[str, Mapping[str, Any]]) -> str:
    parts = [f"{label}: {work['acceptance']:.0%}" for label, work in judged.items() if work["acceptance"] is not None]
    return "Acceptance by temperature: " + ", ".join(parts) + "."
