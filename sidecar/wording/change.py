"""What a change of how vLLM speculates did, as a sentence and a table."""

from collections.abc import Sequence
from typing import Final

from sidecar.analysis.change import Median, Moment, Sample
from sidecar.analysis.report import ModelReport
from sidecar.requests.messages import Speculation
from sidecar.wording.numbers import counted, date, rate_within

CHANGE: Final = ("before and after", "before", "now")
_ALIKE: Final = 1.25  # loads up to this ratio are comparable
_NONE_ALIKE: Final = "No temperature has requests of before and of now."
_INDEPENDENT: Final = (
    "Medians of single requests; the intervals hold for requests that are independent of each"
    " other, and are too narrow where many come from one session."
)


def speculation_phrase(speculation: Speculation) -> str:
    """How an engine drafts, in a few words."""
    parts = [
        speculation.method or "unknown method",
        counted(speculation.num_speculative_tokens, "token"),
    ]
    if speculation.per_batch_size:
        parts.append("schedule by batch size")
    if speculation.adaptive_verification:
        parts.append("adaptive verification")
    if speculation.draft_sample_method == "greedy":
        parts.append("drafts the likeliest token")
    elif speculation.draft_sample_method:
        parts.append(f"drafts are sampled ({speculation.draft_sample_method})")
    if speculation.rejection_sample_method:
        parts.append(f"sampler {speculation.rejection_sample_method}")
    return ", ".join(parts)


def change_sentence(model: ModelReport) -> str:
    """What was changed and when, and whether the load is still the same; empty without a change."""
    change = model.change
    if change is None:
        return ""

    before = change.before
    was = f"Before: {speculation_phrase(before.speculation)} (as of {date(before.at)})."
    now = change.now
    if now is None:
        return f"{was} Since {date(change.since)} too few requests have finished to compare."

    speculates = speculation_phrase(now.speculation)
    since = f"Now, since {date(change.since)}: {speculates} (as of {date(now.at)})."
    if not change_rows(model):
        return f"{was} {since} {_NONE_ALIKE}"
    rest = (_left_out(before, now), _load(before, now), _INDEPENDENT)
    return " ".join(filter(None, (was, since, *rest)))


def change_rows(model: ModelReport) -> list[Sequence[str]]:
    """Acceptance and times before and after, by temperature; empty if one of them is not known."""
    change = model.change
    if change is None or change.now is None:
        return []

    rows: list[Sequence[str]] = []
    for temperature, now in change.now.temperatures.items():
        before = change.before.temperatures.get(temperature)
        if before is None:
            continue

        name = f"T {temperature}"
        rows.append((f"{name}, acceptance rate", _acceptance(before), _acceptance(now)))
        rows.append((f"{name}, TPOT P50", _time(before.tpot), _time(now.tpot)))
        rows.append((f"{name}, TTFT P50", _time(before.ttft), _time(now.ttft)))
        rows.append((f"{name}, requests", _requests(before), _requests(now)))
    return rows


def _left_out(before: Moment, now: Moment) -> str:
    """The temperatures of one side only, which have no rows; empty if there are none."""
    both = before.temperatures.keys() & now.temperatures.keys()
    every = dict.fromkeys((*before.temperatures, *now.temperatures))
    others = ", ".join(temperature for temperature in every if temperature not in both)
    return f"Left out, since only one side has drafts there: T {others}." if others else ""


def _load(before: Moment, now: Moment) -> str:
    """Whether the times were measured at the same load."""
    if before.running is None or now.running is None:
        return "How many requests ran then is not known, and times depend on it."

    text = f"On average {before.running:.1f} requests ran then and {now.running:.1f} now"
    low, high = sorted((before.running, now.running))
    if high > _ALIKE * low:
        return f"{text}: times differ by that, too."
    return f"{text}."


def _requests(side: Sample) -> str:
    """How many requests the times are of; then how many the acceptance rate, if fewer drafted.

    The rate's window is up to 15 seconds longer than that of the times, so it may have more.
    """
    if side.timed <= side.requests:
        return f"{side.timed:,}"
    return f"{side.timed:,} (acceptance: {side.requests:,})"


def _acceptance(side: Sample) -> str:
    if side.acceptance is None or side.error is None:
        return "too few requests"
    return rate_within(side.acceptance, side.error)


def _time(median: Median | None) -> str:
    """Finer than other times, since a change is often of a few percent."""
    if median is None:
        return "too few requests"
    if median.high >= 1:
        return f"{median.seconds:.2f} s ({median.low:.2f} to {median.high:.2f} s)"
    low, middle, high = (1000 * one for one in (median.low, median.seconds, median.high))
    return f"{middle:.1f} ms ({low:.1f} to {high:.1f} ms)"
