"""The checklist in words: what this pod's numbers say, and what to try first."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.checklist.candidates import Candidate, Reason
from sidecar.analysis.checklist.checklist import (
    LEAST_POLLS,
    THUMBS,
    Checklist,
    Condition,
    Line,
    Readiness,
    Stance,
)
from sidecar.analysis.checklist.traffic import COOL, HOT, LONG_PROMPT, MOST, Traffic
from sidecar.engine.methods import REJECTED, rejects_parameters
from sidecar.findings.explanation import as_option
from sidecar.wording.numbers import counted, duration, percent

HEADER: Final = ("condition", "says", "this pod", "speaks for it", "speaks against it")
SAYS: Final = {
    Stance.FOR: "for",
    Stance.AGAINST: "against",
    Stance.UNDECIDED: "between",
    Stance.UNKNOWN: "not known",
}
_MEASURE: Final = (
    "The thresholds are rules of thumb. Only a measurement decides: `specdec-sidecar sweep"
    " --url URL --against OTHER` (docs/measure.md)."
)
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class CandidateText:
    """A method to try: why, and the option of vLLM to paste."""

    method: str
    why: str
    option: str


@dataclass(frozen=True, slots=True)
class ChecklistText:
    """The checklist as text: ``rows`` have the columns of ``HEADER``."""

    conclusion: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    candidates: tuple[CandidateText, ...]


def checklist_text(checklist: Checklist) -> ChecklistText:
    """All that is said of a checklist."""
    return ChecklistText(
        conclusion=conclusion(checklist),
        header=HEADER,
        rows=tuple(_row(line, checklist) for line in checklist.lines),
        candidates=tuple(_candidate(one, checklist) for one in checklist.candidates),
    )


def conclusion(checklist: Checklist) -> str:
    """What all lines say together, in one to three sentences."""
    traffic = checklist.traffic
    if traffic is None:
        return (
            "Whether speculation would suit it is not known: that takes what a plug-in reports of"
            " its requests."
        )
    if checklist.verdict is Readiness.INSUFFICIENT_DATA:
        return _too_little(checklist, traffic)

    seen = f"Judging by {counted(traffic.requests, 'request')} in {duration(traffic.seconds)}"
    against = checklist.lines_that(Stance.AGAINST)
    reasons = _reasons(against, checklist)
    if checklist.verdict is Readiness.LEAVE_OFF:
        blocking = [line for line in against if line.blocks]
        reasons = _reasons(blocking, checklist) or reasons
        return f"{seen}, leave speculation off for now: {reasons}."

    return " ".join((f"{seen}, {_open(checklist, reasons)}", *_price(checklist), _MEASURE))


def _too_little(checklist: Checklist, traffic: Traffic) -> str:
    """What is missing: requests, or what could be reason enough to leave speculation off."""
    if traffic.requests < checklist.least:
        return (
            "Not enough requests yet to say whether speculation would suit them:"
            f" {traffic.requests} of {checklist.least}."
        )

    unknown = [_WORDS[line.condition] for line in checklist.lines if line.may_block]
    missing = " and ".join(words.unknown for words in unknown if words.unknown is not None)
    return (
        f"Nothing speaks against speculation yet, but it is not known {missing}, which alone could"
        f" be a reason to leave it off. The load counts from {LEAST_POLLS} polls with requests on,"
        f" requests' times from {checklist.least} requests on."
    )


def _open(checklist: Checklist, reasons: str) -> str:
    """That speculation is worth a try, or may pay or not."""
    if checklist.verdict is Readiness.TRY:
        return "speculation is worth a try: nothing speaks against it."
    if reasons:
        return f"speculation may pay or not. Against it: {reasons}."
    return "speculation may pay or not: not enough lines speak for it."


def _price(checklist: Checklist) -> Iterator[str]:
    """Which requests will fail, where they are too few to decide."""
    if checklist.stance(Condition.PARAMETERS) is Stance.UNDECIDED:
        yield f"But {_rejected(checklist)}."


def _row(line: Line, checklist: Checklist) -> tuple[str, ...]:
    """Without a number where nothing is said of it."""
    words = _WORDS[line.condition]
    seen = _NONE if line.stance is Stance.UNKNOWN else words.seen(checklist)
    return (words.name, SAYS[line.stance], seen, words.pays, words.loses)


def _reasons(lines: Iterable[Line], checklist: Checklist) -> str:
    """The clauses of lines that speak against it."""
    clauses = [_WORDS[line.condition].against for line in lines]
    return "; ".join(clause(checklist) for clause in clauses if clause is not None)


def _candidate(candidate: Candidate, checklist: Checklist) -> CandidateText:
    return CandidateText(
        method=candidate.method,
        why=" ".join(_why(candidate, checklist)),
        option=as_option(json.dumps(candidate.options)),
    )


_REASONS: Final = {
    Reason.GUESSES_BEST: (
        "A head that was trained for this model guesses best; `mtp` if the model has such layers of"
        " its own. `specdec-sidecar plan` says whether it fits."
    ),
    Reason.NO_HEAD: (
        "A small model of the same family, where there is no such head. `specdec-sidecar plan` says"
        " whether it fits."
    ),
    Reason.REPEATS: (
        "Structured output, and answers to long prompts, repeat much. A suffix tree proposes that"
        " without a model; it needs the package arctic-inference."
    ),
}


def _why(candidate: Candidate, checklist: Checklist) -> Iterator[str]:
    yield _REASONS[candidate.reason]
    if candidate.samples_drafts and checklist.traffic is not None:
        hot = percent(checklist.traffic.hot)
        yield f"Its drafts are sampled (vLLM 0.22 and later), since {hot} are above {HOT}."

    if candidate.has_model and checklist.stance(Condition.LOAD) is Stance.UNKNOWN:
        yield "The load is not known yet: draft fewer tokens if it is high."
    if candidate.gives_up:
        yield f"vLLM gives up {' and '.join(candidate.gives_up)} for it."
    if not candidate.is_ruled:
        yield "Its acceptance rate alone says nothing, so measure a baseline before."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """A condition: its name, what speaks for and against speculation, and this pod's number.

    ``seen`` is a cell of the table, where the number is known, ``against`` a clause, None where no
    number speaks against it. ``unknown`` is the question to which the number is the answer, None
    where it never decides alone or is always known.
    """

    name: str
    pays: str
    loses: str
    seen: Callable[[Checklist], str]
    against: Callable[[Checklist], str] | None = None
    unknown: str | None = None


def _traffic(checklist: Checklist) -> Traffic:
    return checklist.traffic or Traffic()


def _tokens(values: tuple[float, float] | None) -> str:
    median, high = values or (0.0, 0.0)
    return f"P50 {median:,.0f}, P95 {high:,.0f} tokens"


def _temperatures(checklist: Checklist) -> str:
    traffic = _traffic(checklist)
    return (
        f"median {traffic.temperature or 0:g}; {percent(traffic.cool)} up to {COOL},"
        f" {percent(traffic.hot)} above {HOT}"
    )


def _outputs(checklist: Checklist) -> str:
    return _tokens(_traffic(checklist).output_tokens)


def _short_outputs(checklist: Checklist) -> str:
    tokens = _traffic(checklist).output_tokens
    median = 0.0 if tokens is None else tokens[0]
    return f"half of the outputs have {median:,.0f} tokens or fewer"


def _first_tokens(checklist: Checklist) -> str:
    return f"{percent(_traffic(checklist).first_token)} of the requests"


def _prompts(checklist: Checklist) -> str:
    traffic = _traffic(checklist)
    tokens = _tokens(traffic.prompt_tokens)
    return f"{tokens}; {percent(traffic.long_prompts)} above {LONG_PROMPT:,}"


def _share(part: Callable[[Traffic], float | None]) -> Callable[[Checklist], str]:
    """Shows a share of the requests."""

    def shown(checklist: Checklist) -> str:
        return f"{percent(part(_traffic(checklist)))} of the requests"

    return shown


def _parameters(checklist: Checklist) -> str:
    if not rejects_parameters(checklist.vllm):
        return f"vLLM {checklist.vllm} rejects none"

    traffic = _traffic(checklist)
    used = [f"{name} in {_used(share, traffic)}" for name, share in traffic.rejected.items()]
    return " and ".join(used) or "none"


def _rejected(checklist: Checklist) -> str:
    traffic = _traffic(checklist)
    used = [f"{name} ({_used(share, traffic)})" for name, share in traffic.rejected.items()]
    return f"vLLM rejects {' and '.join(used)} with status 400 while it speculates"


def _used(share: float, traffic: Traffic) -> str:
    """How many of the requests, also if that is less than a percent."""
    if share < _PARAMETERS.loses:
        return counted(round(share * traffic.requests), "request")
    return f"{percent(share)} of the requests"


def _load(checklist: Checklist) -> str:
    load = checklist.load
    return f"{load.running or 0:.1f} running on average, {load.most or 0:.0f} at most"


def _heavy_load(checklist: Checklist) -> str:
    return f"{checklist.load.running or 0:.0f} requests run at once on average"


def _queue(checklist: Checklist) -> str:
    return percent(checklist.load.queued)


def _queued(checklist: Checklist) -> str:
    return f"requests wait at {percent(checklist.load.queued)} of the busy polls"


def _kv_cache(checklist: Checklist) -> str:
    return percent(checklist.load.kv_cache_high)


def _full_cache(checklist: Checklist) -> str:
    return f"the KV cache is {percent(checklist.load.kv_cache_high)} full (P95 of busy polls)"


def _at_most(condition: Condition) -> str:
    """What speaks for speculation where less is better, as a share."""
    return f"at most {THUMBS[condition].pays:.0%}"


def _from(condition: Condition) -> str:
    """What speaks against it there."""
    return f"{THUMBS[condition].loses:.0%} or more"


def _hot(checklist: Checklist) -> str:
    return f"{percent(_traffic(checklist).hot)} of the requests are above T {HOT}"


def _late(checklist: Checklist) -> str:
    share = percent(_traffic(checklist).first_token)
    return f"{share} of the requests spend at least half of their time before the first token"


def _long(checklist: Checklist) -> str:
    return f"{percent(_traffic(checklist).long_prompts)} of the prompts are long"


_OUTPUTS: Final = THUMBS[Condition.OUTPUTS]
_LOAD: Final = THUMBS[Condition.LOAD]
_PARAMETERS: Final = THUMBS[Condition.PARAMETERS]
_WORDS: Final = {
    Condition.TEMPERATURES: _Words(
        name="temperatures",
        pays=f"{MOST:.0%} up to {COOL}",
        loses=f"{MOST:.0%} above {HOT}",
        seen=_temperatures,
        against=_hot,
    ),
    Condition.OUTPUTS: _Words(
        name="output length",
        pays=f"P50 of {_OUTPUTS.pays:.0f} or more",
        loses=f"P50 of {_OUTPUTS.loses:.0f} or fewer",
        seen=_outputs,
        against=_short_outputs,
    ),
    Condition.FIRST_TOKENS: _Words(
        name="mostly waiting for the first token",
        pays=_at_most(Condition.FIRST_TOKENS),
        loses=_from(Condition.FIRST_TOKENS),
        seen=_first_tokens,
        against=_late,
        unknown="how long requests wait for the first token",
    ),
    Condition.PROMPTS: _Words(
        name="prompt length",
        pays=f"{_at_most(Condition.PROMPTS)} above {LONG_PROMPT:,}",
        loses=_from(Condition.PROMPTS),
        seen=_prompts,
        against=_long,
    ),
    Condition.STRUCTURED: _Words(
        name="structured output",
        pays=_at_most(Condition.STRUCTURED),
        loses=_NONE,
        seen=_share(lambda traffic: traffic.structured),
    ),
    Condition.SAMPLING: _Words(
        name="top-k, top-p, min-p, penalties",
        pays=_at_most(Condition.SAMPLING),
        loses=_NONE,
        seen=_share(lambda traffic: traffic.shaped),
    ),
    Condition.PARAMETERS: _Words(
        name=" and ".join(REJECTED),
        pays="none",
        loses=f"{_PARAMETERS.loses:.0%} or more: status 400 while vLLM speculates",
        seen=_parameters,
        against=_rejected,
    ),
    Condition.LOAD: _Words(
        name="load of the busiest engine",
        pays=f"up to {_LOAD.pays:.0f} running",
        loses=f"{_LOAD.loses:.0f} or more",
        seen=_load,
        against=_heavy_load,
    ),
    Condition.QUEUE: _Words(
        name="busy polls at which requests wait",
        pays=_at_most(Condition.QUEUE),
        loses=_from(Condition.QUEUE),
        seen=_queue,
        against=_queued,
        unknown="how often requests wait",
    ),
    Condition.KV_CACHE: _Words(
        name="KV cache used, P95 of busy polls",
        pays=_at_most(Condition.KV_CACHE),
        loses=_from(Condition.KV_CACHE),
        seen=_kv_cache,
        against=_full_cache,
        unknown="how full the KV cache is",
    ),
}
