"""The sentence at the top of the page: does speculation pay?

It states the verdicts and computes none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from sidecar.analysis.advice import Direction
from sidecar.analysis.checklist.checklist import Checklist
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.evidence import CONFIDENCE, Evidence
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.report import EngineReport, ModelReport, Report, TemperatureReport
from sidecar.analysis.speed.speedup import Speedup
from sidecar.analysis.speed.steps import Steps
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.plugin_state import PluginReport
from sidecar.engine.names import Gauge
from sidecar.errors import TimedOut, Unreachable
from sidecar.findings.ending import READ_A_REPLY, unmeasured, unmeasured_sentence, worse_sentence
from sidecar.findings.finding import Finding, advised
from sidecar.findings.lower_acceptance import LowerAcceptance
from sidecar.findings.mismatch import collapse_sentence
from sidecar.findings.not_speculating import NotSpeculating
from sidecar.findings.number_of_tokens import NumberOfTokens
from sidecar.findings.one_engine import ONE_ENGINE
from sidecar.findings.room import lets_many_wait
from sidecar.wording.checklist import conclusion
from sidecar.wording.health import stalled_sentence
from sidecar.wording.notes import (
    ALMOST_ALL,
    LIMITATIONS,
    resting_loads,
    room_sentence,
    undecided_sentence,
)
from sidecar.wording.numbers import counted, duration, latency, moment, percent
from sidecar.wording.plugin import headless_sentence, no_split_sentence
from sidecar.wording.speed import (
    BASELINE,
    Side,
    deciding_sentence,
    estimate_sentence,
    held_sentence,
    plus_minus,
    side_by_sizes,
    why_withheld,
)
from sidecar.wording.tables import judged_window
from sidecar.wording.verdicts import is_guess, words_of

# Worst first.
TONES: Final = {
    Verdict.NET_NEGATIVE: "bad",
    Verdict.BREAK_EVEN: "even",
    Verdict.NET_POSITIVE: "good",
    Verdict.INSUFFICIENT_DATA: "mute",
}
_LIKELY: Final = "likely"  # by the rule of thumb alone
_WORST_FIRST: Final = ("bad", "even", _LIKELY, "good", "mute")
_MINUTE: Final = 60.0
_NAMED_ENGINES: Final = 3  # of more, their number is told
_NAMED_MODELS: Final = 3
_SETTLED: Final = 60.0  # seconds of traffic after which the answer does not wait for the speedup
# The acceptance rate knows neither the load nor the cost of drafting.
_BY_RULE: Final = "Not measured; by the rule of thumb, speculation"
_UNCERTAIN: Final = (
    "Not measured; by the rule of thumb, it is not certain whether speculation pays."
)
_BY_TIME: Final = "Measured with prefill, against decoding without speculation at the same load"
_EVEN: Final = "Without speculation, requests would take about as long."
_OFF: Final = "On the whole, it is faster without --speculative-config."
_UNTIL: Final = "Until a change helps, it is faster without --speculative-config on the whole."
_MEASURED_BY: Final = (
    f"measure what it saves or costs, on a vLLM without --speculative-config: `{BASELINE}`"
    " (docs/measure.md)."
)
_MEASURE: Final = f"{_MEASURED_BY[:1].upper()}{_MEASURED_BY[1:]}"
_MEASURE_FIRST: Final = f"Before you turn it off, {_MEASURED_BY}"
_FEWER_FIRST: Final = f"First try fewer draft tokens; before you turn it off, {_MEASURED_BY}"
_ON_AVERAGE: Final = {
    Verdict.NET_NEGATIVE: "does not pay",
    Verdict.BREAK_EVEN: "roughly breaks even",
    Verdict.NET_POSITIVE: "pays",
}

_RATED: Final = {
    Verdict.NET_NEGATIVE: "low",
    Verdict.BREAK_EVEN: "medium",
    Verdict.NET_POSITIVE: "high",
}
# Where the rule of thumb and the sizes of the models contradict each other.
_DISAGREE: Final = frozenset(
    {
        (Verdict.NET_NEGATIVE, Side.ABOVE),
        (Verdict.BREAK_EVEN, Side.ABOVE),
        (Verdict.BREAK_EVEN, Side.BELOW),
        (Verdict.NET_POSITIVE, Side.BELOW),
    }
)

# Why a baseline that there is does not help; where there is none, the rule of thumb is expected.
_SAID_FIRST: Final = frozenset(Withheld) - {Withheld.NO_REFERENCE, Withheld.TOO_LITTLE}

Split = Sequence[TemperatureReport]  # the temperatures that are judged


@dataclass(frozen=True, slots=True)
class Answer:
    """The text, its colour (a class in the style sheet), and the reason.

    ``listed`` has the rates and speedups by temperature, which a page with a row for each leaves
    out, and ``others`` which other models pay. ``about`` are the verdicts that the text states, and
    ``since`` says since when they hold. ``model_name`` is the model that it is about; None if it is
    about vLLM as such. ``is_fault``: something is broken, and the reason says what to do.
    """

    text: str
    tone: str
    reason: str
    listed: str = ""
    others: str = ""
    since: str = ""
    about: tuple[Judgement, ...] = ()
    model_name: str | None = None
    is_fault: bool = False

    @property
    def why(self) -> str:
        """The reason for who has no such rows."""
        return " ".join(filter(None, (self.reason, self.listed, self.others)))

    @property
    def why_beside_rows(self) -> str:
        """The reason for who has them."""
        return " ".join(filter(None, (self.reason, self.others)))


_SYNTHETIC: Final = Answer(
    "vLLM accepts draft tokens at a set rate, whatever the model says: replies are not its own.",
    "bad",
    "Its rejection_sample_method is synthetic, which is for benchmarks: remove it.",
    is_fault=True,
)
_NOTHING_COUNTED: Final = Answer(
    "vLLM has counted nothing yet.",
    "mute",
    "Behind its Rust frontend, older versions show an engine once it has had a request.",
)


def tone_of(judgement: Judgement) -> str:
    """The colour of a judgement: good or bad is only what was measured, or a fault."""
    if is_guess(judgement):
        is_high = judgement.verdict is Verdict.NET_POSITIVE
        return _LIKELY if is_high else TONES[Verdict.BREAK_EVEN]
    return TONES[judgement.verdict]


def answer(report: Report) -> Answer:
    """The answer for a report; if it has several models, for the worst of them."""
    found = _answer(report)
    return replace(found, since=found.since or _since(found.about, report.at))


def _since(about: Sequence[Judgement], at: float) -> str:
    """Since when the verdicts hold: all of them or, of losses, the first; may be empty."""
    dated = [(one.since, one) for one in about if one.since is not None]
    if not dated or any(one.verdict is Verdict.INSUFFICIENT_DATA for one in about):
        return ""
    choose = min if about[0].verdict is Verdict.NET_NEGATIVE else max
    since, first = choose(dated, key=lambda one: one[0])
    length = _ago(since, at)
    if first.was is None:
        return f"Verdict since {length}."
    return f"Since {length}; before: {words_of(first.was, is_guess=is_guess(first))}."


def _ago(since: float, at: float) -> str:
    """The time of day, and how long ago by the clock: the page has the time of day now, too."""
    length = max(at - since, 0.0)
    if length >= 2 * _MINUTE:
        length = at // _MINUTE * _MINUTE - since // _MINUTE * _MINUTE
    return f"{moment(since, at)} ({duration(length)})"


def _answer(report: Report) -> Answer:
    scrape = report.scrape
    if not scrape.up:
        return _unread(report)

    if report.health.stalled:
        since = f"Since {_ago(min(one.since for one in report.health.stalled), report.at)}."
        why = stalled_sentence(report.health)
        return Answer("vLLM's engine hangs.", "bad", why, since=since, is_fault=True)

    told = [model for model in report.models if _drafts(model) or _has_bad_replies(model)]
    checklists = {
        model.model_name: model.checklist for model in report.models if model.checklist is not None
    }
    if checklists and len(checklists) == len(report.models):
        return _plain(report, checklists)

    if not report.models:
        return _NOTHING_COUNTED
    if not told:
        return _without_drafts(report)

    return _of_models(told, report.plugin)


def _of_models(models: Sequence[ModelReport], plugin: PluginReport) -> Answer:
    """That of the worst one; of several, it is named, and the others' verdicts are told."""
    answers = {model.model_name: _of(model, plugin) for model in models}
    ranks = {model.model_name: _rank(_worst(model)) for model in models}
    name = min(answers, key=lambda name: (_WORST_FIRST.index(answers[name].tone), ranks[name]))
    worst = replace(answers[name], model_name=name)
    if len(answers) == 1:
        return worst

    others = "" if worst.is_fault else _others([one for one in models if one.model_name != name])
    return replace(worst, text=f"{name}: {worst.text}", others=others)


def _others(models: Sequence[ModelReport]) -> str:
    """Of the models that the answer is not about, which pay and which do not, where measured."""
    said = {
        "it pays": _named_with(models, Verdict.NET_POSITIVE),
        "it does not pay": _named_with(models, Verdict.NET_NEGATIVE),
    }
    return " ".join(f"On {names} {what}." for what, names in said.items() if names)


def _named_with(models: Sequence[ModelReport], verdict: Verdict) -> str:
    """The names of those with a verdict by time; of many, their number."""
    names = [model.model_name for model in models if model.judgement.by_speedup is verdict]
    return f"{len(names)} other models" if len(names) > _NAMED_MODELS else _enumerated(names)


def _enumerated(names: Sequence[str]) -> str:
    """As in "a, b and c"; empty without any."""
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _rank(verdict: Verdict) -> int:
    """Its place among all, the worst first."""
    return [*TONES].index(verdict)


def _worst(model: ModelReport) -> Verdict:
    """The worst verdict of the model and its temperatures."""
    judged = [model.judgement, *(bucket.judgement for bucket in model.temperatures)]
    return min((judgement.verdict for judgement in judged), key=_rank)


def _drafts(model: ModelReport) -> bool:
    """Whether anything was drafted in the window."""
    return bool(model.judgement.evidence.window.draft_tokens)


def _has_bad_replies(model: ModelReport) -> bool:
    """Whether there is something to say of its replies; an empty one has no drafts."""
    return model.speed is not None and _of_replies(model) is not None


def _unread(report: Report) -> Answer:
    """That polls fail, since when, and why."""
    error = report.scrape.last_error
    last = report.scrape.last_scrape
    began = report.scrape.began
    since = ""
    if last is not None:
        since = f"Last read at {moment(last, report.at)} ({duration(report.at - last)} ago)."
    elif began is not None:
        since = f"Not read since the first attempt, at {_ago(began, report.at)}."
    text = "The sidecar cannot read vLLM's metrics."
    if isinstance(error, Unreachable | TimedOut):
        text = "vLLM does not answer."

    why = "No poll has succeeded recently."
    if error is not None:
        said = f"{error}. {error.remedy}"
        why = f"{said[:1].upper()}{said[1:]}"
    if isinstance(error, Unreachable) and last is None:
        why = f"{why} {headless_sentence(report.plugin)}".strip()
    return Answer(text, "bad", why, since=since, is_fault=True)


def _plain(report: Report, checklists: Mapping[str, Checklist]) -> Answer:
    """That no model speculates, and whether it would suit the first one whose requests are known.

    If none are, that of the first one says so.
    """
    known = [name for name, one in checklists.items() if one.traffic is not None]
    first, *_ = known or checklists

    text = "This vLLM does not speculate."
    why = Limitation.NO_SPECULATION
    engines = chain.from_iterable(model.engines for model in report.models)
    if any(Limitation.NOTHING_DRAFTED in engine.limitations for engine in engines):
        text = "This vLLM is not known to speculate."
        why = Limitation.NOTHING_DRAFTED
    reason = f"{LIMITATIONS[why]} {conclusion(checklists[first])}"
    return Answer(text, "mute", reason, model_name=first)


def _without_drafts(report: Report) -> Answer:
    """Nothing was drafted in the window: by a fault, asleep, idle, or while it decodes."""
    engines: list[EngineReport] = []
    findings: list[Finding] = []
    for model in report.models:
        engines += model.engines
        findings += model.findings

    contradictory = Limitation.CONTRADICTORY_COUNTERS
    if any(contradictory in engine.limitations for engine in engines):
        why = LIMITATIONS[contradictory]
        return Answer("vLLM's counters are wrong.", "bad", why, is_fault=True)
    if any(isinstance(finding, NotSpeculating) for finding in findings):
        why = "It generates tokens without drafts, although its configuration asks for them."
        text = "vLLM is configured to speculate and does not."
        return Answer(text, "bad", why, is_fault=True)

    running = sum(engine.gauges.get(Gauge.REQUESTS_RUNNING, 0.0) for engine in engines)
    waiting = sum(engine.gauges.get(Gauge.REQUESTS_WAITING, 0.0) for engine in engines)
    if running:
        loads = resting_loads(engines)
        schedule = "a schedule by batch size may draft none at this load"
        if loads:
            schedule = f"vLLM's schedule by batch size drafts none with {loads} requests running"
        why = (
            "No draft tokens in the window. After a start of vLLM or of the sidecar it takes two"
            f" polls to see any; {schedule}, and n-gram or suffix decoding may find nothing to"
            " repeat."
        )
        return Answer("vLLM decodes without drafts.", "mute", why)

    if engines and all(engine.gauges.get(Gauge.AWAKE) == 0 for engine in engines):
        why = f"vLLM says so itself. {counted(waiting, 'request')} waiting until it is woken up."
        return Answer("vLLM is asleep.", "even", why)
    if waiting:
        return Answer("Requests wait, and none runs.", "even", _why_waiting(engines, waiting))

    return Answer("vLLM is idle.", "mute", "No request is running, so there is nothing to judge.")


def _why_waiting(engines: Sequence[EngineReport], waiting: float) -> str:
    """What ``waiting`` requests may wait for while none runs.

    vLLM calls those "deferred" that wait for something else than room (0.20 on). The others may
    wait because of a fault, but need not.
    """
    if not all(Gauge.WAITING_FOR_CAPACITY in engine.gauges for engine in engines):
        return (
            f"{counted(waiting, 'request')} waiting: vLLM is paused, they wait for another server,"
            " or it hangs."
        )

    for_room = min(sum(engine.gauges[Gauge.WAITING_FOR_CAPACITY] for engine in engines), waiting)
    deferred = waiting - for_room
    says = []
    if for_room:
        says.append(
            f"{counted(for_room, 'request')} waiting for room: vLLM is paused, other servers still"
            " hold its KV cache, or it hangs."
        )
    if deferred:
        says.append(
            f"{counted(deferred, 'request')} waiting for another server, an adapter or a grammar,"
            " as vLLM says (deferred)."
        )
    return " ".join(says)


def _of(model: ModelReport, plugin: PluginReport) -> Answer:
    if model.judgement.evidence.is_synthetic:
        return _SYNTHETIC

    if model.judgement.has_collapsed:
        text = "Almost no draft tokens are accepted, and replies may be wrong."
        why = collapse_sentence(model)
        return Answer(text, "bad", why, about=(model.judgement,), is_fault=True)

    replies = _of_replies(model)
    if replies is None:
        return _of_speed(model, plugin)
    if not _drafts(model):
        return replies

    speed = _of_speed(model, plugin)
    if not replies.is_fault:  # it may be right so
        clause = f"{replies.text[:1].lower()}{replies.text[1:-1]}"
        reason = f"{replies.reason} {speed.reason}".strip()
        return replace(_also(speed, clause, replies.tone), reason=reason)

    tone = min(replies.tone, speed.tone, key=_WORST_FIRST.index)
    reason = f"{replies.reason} As for the speed: {speed.text} {speed.reason}".strip()
    return replace(replies, tone=tone, reason=reason, listed=speed.listed)


def _of_replies(model: ModelReport) -> Answer | None:
    """That replies end badly, if so many do that it comes before the speed.

    It is about no verdict: since when one on the speed holds says nothing of the replies.
    """
    if model.endings is not None and model.endings.is_worse:
        return Answer(worse_sentence(model.endings), "bad", READ_A_REPLY, is_fault=True)
    if facts := unmeasured(model.findings):
        return Answer(unmeasured_sentence(facts), "even", READ_A_REPLY)
    return None


def _of_speed(model: ModelReport, plugin: PluginReport) -> Answer:
    """Whether speculation pays, which says nothing about the replies."""
    if _is_settling(model):
        why = "The time per token is known after about half a minute of traffic."
        return Answer("Not enough traffic for a verdict yet.", "mute", why)

    found = _with_parts(_judged(model, plugin), model)
    if model.judgement.by_speedup is Verdict.NET_NEGATIVE and not _drafts_fewer(model):
        off = _UNTIL if _has_another_remedy(model) else _OFF
        found = replace(found, reason=f"{found.reason} {off}".strip())
    if all(judged.by_speedup is None for judged in found.about):
        by_sizes = estimate_sentence(model.estimate, _rates(found.about))
        found = replace(found, reason=f"{by_sizes} {found.reason}".strip())
    room = _lack_of_room(model)
    if room and model.judgement.by_speedup is None:
        why = f"The rule of thumb does not know that: {room} {found.reason}".strip()
        return replace(found, reason=why)

    speed = model.speed
    if speed is not None and speed.held is not None:
        return replace(found, reason=f"{held_sentence(speed.held)} {found.reason}".strip())

    if _is_of_no_help(model):
        return replace(found, text=f"Speedup not known: {why_withheld(model)}. {found.text}")

    return found


def _with_parts(said: Answer, model: ModelReport) -> Answer:
    """With what the verdicts by temperature do not show: an engine, and a lack of room."""
    gains = model.judgement.by_speedup is Verdict.NET_POSITIVE
    if losing := _losing_engines(model):
        said = _also(said, f"it does not pay on {losing}", "even" if gains else "bad")
    elif odd := _odd_engine(model):
        said = _also(said, odd, "even")

    if _lack_of_room(model):
        what = "requests are preempted for lack of KV cache"
        if any(map(lets_many_wait, model.engines)):
            what = "requests wait for KV cache"
        said = _also(said, what, "even")

    return said


def _also(said: Answer, clause: str, tone: str) -> Answer:
    """The answer with one more clause, in the worse of both colours."""
    loses = any(judged.verdict is Verdict.NET_NEGATIVE for judged in said.about)
    word = "Also," if loses or said.tone == "bad" or " But " in said.text else "But"
    worse = min(said.tone, tone, key=_WORST_FIRST.index)
    return replace(said, text=f"{said.text} {word} {clause}.", tone=worse)


def _lack_of_room(model: ModelReport) -> str:
    """That requests wait for room, or are preempted, where speculation pays otherwise."""
    return room_sentence(model) if _worst(model) is Verdict.NET_POSITIVE else ""


def _losing_engines(model: ModelReport) -> str:
    """Those of several engines that lose by time, where their model as a whole does not."""
    if model.judgement.verdict is Verdict.NET_NEGATIVE:
        return ""
    losing = [
        one.key.engine for one in model.engines if one.judgement.by_speedup is Verdict.NET_NEGATIVE
    ]
    if len(losing) > _NAMED_ENGINES:
        return f"{len(losing)} of {len(model.engines)} engines"
    return f"{'engine' if len(losing) == 1 else 'engines'} {', '.join(losing)}" if losing else ""


def _odd_engine(model: ModelReport) -> str:
    """The one engine that accepts less than the others, as a clause; empty if there is none."""
    odd = next((one for one in model.findings if one.code == ONE_ENGINE.code), None)
    if not isinstance(odd, LowerAcceptance):
        return ""
    return f"engine {odd.group} accepts {percent(odd.rate)}, the others {percent(odd.others)}"


def _drafts_fewer(model: ModelReport) -> bool:
    """Whether fewer draft tokens, and some, are advised, which then are faster than none."""
    return any(isinstance(one, NumberOfTokens) and one.is_sure for one in model.findings)


def _has_another_remedy(model: ModelReport) -> bool:
    """Whether something else is advised than to draft nothing."""
    return any(
        not isinstance(one, NumberOfTokens) or one.tokens.direction is not Direction.NONE
        for one in advised(model.findings)
    )


def _is_of_no_help(model: ModelReport) -> bool:
    """Whether there is a baseline, and no speedup all the same."""
    withheld = model.speed.withheld if model.speed is not None else None
    if withheld is Withheld.NO_STEPS:
        return model.plain_steps is not None
    return withheld in _SAID_FIRST


def _judged(model: ModelReport, plugin: PluginReport) -> Answer:
    split = [
        bucket
        for bucket in model.temperatures
        if bucket.judgement.verdict is not Verdict.INSUFFICIENT_DATA or bucket.judgement.leans
    ]
    verdict = model.judgement.verdict
    # Also if there are none.
    if all(_is_worse(verdict, bucket.judgement.verdict) for bucket in split):
        listed = _listed(split) if split else ""
        return replace(_overall(model, plugin, split), listed=listed)

    if all(_speedup(bucket) is not None for bucket in split):
        return _by_time(split, model)
    return _by_temperature(split, model)


def _speedup(bucket: TemperatureReport) -> Speedup | None:
    """The speedup by which a temperature was judged, which may be a held one."""
    if bucket.judgement.by_speedup is None:
        return None
    return bucket.held.speedup if bucket.held is not None else bucket.speedup


def _is_settling(model: ModelReport) -> bool:
    """Whether a sidecar that has just started will soon judge by time.

    Until then the acceptance rate would decide, and the answer would turn over.
    """
    withheld = model.speed.withheld if model.speed is not None else None
    seconds = model.judgement.evidence.window.seconds
    has_reference = model.plain_steps is not None
    return has_reference and withheld is Withheld.TOO_LITTLE and seconds < _SETTLED


def _is_worse(verdict: Verdict, than: Verdict) -> bool:
    """Whether a verdict is worse than another.

    For example, that of all requests is worse where a temperature without its own verdict loses.
    """
    if verdict is Verdict.INSUFFICIENT_DATA:
        return False
    return _rank(verdict) < _rank(than)


def _with(split: Split, verdict: Verdict) -> Split:
    return [bucket for bucket in split if bucket.judgement.verdict is verdict]


def _undecided(model: ModelReport) -> Split:
    """The temperatures with enough traffic at which no verdict is certain yet."""
    return [bucket for bucket in model.temperatures if bucket.judgement.is_undecided]


def _by_temperature(split: Split, model: ModelReport) -> Answer:
    undecided = _undecided(model)
    drafted = _drafted(model)
    losing = _with(split, Verdict.NET_NEGATIVE)
    losing = [bucket for bucket in losing if _is_measured([bucket])] or losing
    even = _with(split, Verdict.BREAK_EVEN)
    open_ = f"At {_temperatures(undecided)} it is undecided." if undecided else ""

    if losing:
        text = f"{_clause(losing, model)} at {_temperatures(losing)}{_share(losing)}{drafted}."
        return _said_of(losing, text, open_, split, model)

    if even:
        text = f"{_clause(even, model)} at {_temperatures(even)}{drafted}."
        return _said_of(even, text, open_, split, model)

    pays = _with(split, Verdict.NET_POSITIVE)
    where = _temperatures(pays) if undecided else "every temperature with enough data"
    text = f"{_clause(pays, model)} at {where}{drafted}."
    return _said_of(pays, text, open_, split, model)


def _said_of(split: Split, text: str, reason: str, shown: Split, model: ModelReport) -> Answer:
    """An answer about temperatures of one verdict, of all that are ``shown``."""
    tone = _tone(_judgements(split), model)
    if _with(split, Verdict.NET_NEGATIVE) and not _is_measured(split):
        reason = f"{reason} {_measure_first(model)}".strip()
    return Answer(text, tone, reason, _listed(shown), about=_judgements(split))


def _share(split: Split) -> str:
    """Their share of the draft tokens as a clause; empty if they have all."""
    # All of one window, whichever each was judged over.
    share = percent(sum(bucket.window.share for bucket in split))
    if share == percent(1.0):
        return ""
    return f", which {'have' if len(split) > 1 else 'has'} {share} of the draft tokens"


def _measure_first(model: ModelReport) -> str:
    """What to do before speculation that does not pay by the rule of thumb is turned off."""
    fewer = any(
        isinstance(one, NumberOfTokens) and one.tokens.direction is Direction.FEWER
        for one in model.findings
    )
    return _FEWER_FIRST if fewer else _MEASURE_FIRST


def _judgements(split: Split) -> tuple[Judgement, ...]:
    return tuple(bucket.judgement for bucket in split)


def _clause(split: Split, model: ModelReport) -> str:
    """Whether speculation pays at temperatures of one verdict."""
    judgements = _judgements(split)
    if _is_measured(split):
        return f"Speculation {_ON_AVERAGE[judgements[0].verdict]}"
    return _by_rule(judgements, model)


def _by_rule(judgements: Sequence[Judgement], model: ModelReport) -> str:
    """Whether speculation pays by the rule of thumb, and that it is not measured.

    Where the sizes of the models say otherwise, only what the acceptance rate is like.
    """
    verdict = judgements[0].verdict
    if _is_contradicted(judgements, model):
        return f"Not measured; the acceptance rate is {_RATED[verdict]} by the rule of thumb"
    return f"{_BY_RULE} {_ON_AVERAGE[verdict]}"


def _is_contradicted(judgements: Sequence[Judgement], model: ModelReport) -> bool:
    """Whether the sizes of the models say otherwise than guesses of one verdict."""
    side = side_by_sizes(model.estimate, _rates(judgements))
    return all(map(is_guess, judgements)) and (judgements[0].verdict, side) in _DISAGREE


def _rates(judgements: Sequence[Judgement]) -> list[float]:
    """The acceptance rates that were judged, 0 to 1."""
    return [judged.acceptance for judged in judgements if judged.acceptance is not None]


def _tone(judgements: Sequence[Judgement], model: ModelReport) -> str:
    """The worst colour of judgements of one verdict; of a contradicted guess it is not good."""
    if _is_contradicted(judgements, model):
        return TONES[Verdict.BREAK_EVEN]
    return min(map(tone_of, judgements), key=_WORST_FIRST.index)


def _is_measured(split: Split) -> bool:
    return all(bucket.judgement.by_speedup is not None for bucket in split)


def _temperatures(split: Split) -> str:
    names = [bucket.temperature for bucket in split]
    return f"{'temperatures' if len(names) > 1 else 'temperature'} {_enumerated(names)}"


def _by_time(split: Split, model: ModelReport) -> Answer:
    """Time saved and lost per token, if plain decoding was measured; losses first."""
    saved = _with(split, Verdict.NET_POSITIVE)
    lost = _with(split, Verdict.NET_NEGATIVE)
    even = _with(split, Verdict.BREAK_EVEN)
    leaning = _with(split, Verdict.INSUFFICIENT_DATA)

    parts = []
    if lost:
        parts.append(f"costs {', '.join(_at_each(lost, _gained))}")
    if saved:
        parts.append(f"saves {', '.join(_at_each(saved, _gained))}")
    if even:
        parts.append(f"breaks even {_at(even)}")
    if parts and leaning:
        parts.append(f"is undecided {_at(leaning)}")

    if lost or saved:
        word = _in_a_word(model.judgement, lost, saved, [*even, *leaning])
        text = f"Speculation {word}: per token, it {'; '.join(parts)}."
    elif even:
        text = f"Speculation {'; '.join(parts)}."
    else:
        text = f"Undecided: per token, speculation {'; '.join(_probably(leaning))}."

    ratios = ", ".join(_at_each(split, plus_minus))
    listed = f"Speedup over decoding without speculation: {ratios}. {_listed(split)}"

    tone = min((TONES[one.judgement.verdict] for one in split), key=_WORST_FIRST.index)
    if lost and model.judgement.by_speedup is Verdict.NET_POSITIVE:
        tone = TONES[Verdict.BREAK_EVEN]  # it says "in part", and the model as a whole gains
    worst = lost or even or saved or leaning
    more = ""
    if not (lost or saved or even):
        more = f" {deciding_sentence(model)}"
    elif not (lost or saved or leaning):
        more = f" {_EVEN}"
    reason = f"{_BY_TIME}{_at_load(model)}.{more}"
    return Answer(text, tone, reason, listed, about=_judgements(worst))


def _in_a_word(whole: Judgement, lost: Split, saved: Split, neither: Split) -> str:
    """Whether it pays, as the row of all requests and the dashboards have it.

    ``neither`` are the temperatures that break even or are undecided. Others may have too little
    traffic to be told.
    """
    verdict = None if is_guess(whole) else whole.verdict
    if lost and verdict is Verdict.NET_NEGATIVE:
        return "does not pay on the whole" if saved else "does not pay"
    if lost:
        return "loses in part"
    return "pays" if verdict is Verdict.NET_POSITIVE and not neither else "pays in part"


def _at(split: Split) -> str:
    return f"at T {', '.join(bucket.temperature for bucket in split)}"


def _at_each(split: Split, say: Callable[[Speedup], str]) -> list[str]:
    """What ``say`` makes of the speedup at each temperature where it is known."""
    said = []
    for bucket in split:
        speedup = _speedup(bucket)
        if speedup is not None:
            said.append(f"{say(speedup)} at T {bucket.temperature}")
    return said


def _probably(split: Split) -> list[str]:
    """The time saved or lost where the interval of the ratio reaches across a threshold."""
    clear = [bucket for bucket in split if not is_unclear(_speedup(bucket))]
    unclear = [bucket for bucket in split if is_unclear(_speedup(bucket))]
    said = _at_each(clear, lambda speedup: _leaning(speedup, _changes(speedup)))
    return [*said, f"makes no clear difference so far {_at(unclear)}"] if unclear else said


def is_unclear(speedup: Speedup | None) -> bool:
    """Within its error a ratio says nothing, not even on which side of 1 it is."""
    return speedup is None or abs(speedup.ratio - 1) <= CONFIDENCE * speedup.error


def _leaning(speedup: Speedup, change: str) -> str:
    if is_unclear(speedup):
        return f"makes no clear difference so far ({plus_minus(speedup)})"
    return f"probably {change}, not yet certain ({plus_minus(speedup)})"


def _overall(model: ModelReport, plugin: PluginReport, temperatures: Split) -> Answer:
    """The verdict on the model as a whole, where no temperature's is as bad."""
    judged = model.judgement
    speedup = model.speed.in_force if model.speed is not None else None
    verdict = judged.verdict
    window = judged_window(judged)
    is_ruled = judged.evidence.is_ruled

    split = "No temperature has enough traffic for a verdict." if is_ruled else ""
    open_ = _undecided(model)
    if open_:
        split = f"At {_temperatures(open_)} it is undecided."
    if temperatures:
        split = ""
    elif model.no_split is not None:
        split = no_split_sentence(model.no_split, plugin)

    rate = f"{percent(window.rate)}{_without_loops(judged.evidence)}"
    why = f"The acceptance rate over all requests is {rate}. {split}".strip()

    if judged.leans and speedup is not None:
        text = f"Speculation {leaning_effect(speedup)} on average{_at_load(model)}."
        return Answer(text, TONES[verdict], why)

    if verdict is Verdict.INSUFFICIENT_DATA:
        if not is_ruled:
            text = (
                "The acceptance rate does not tell whether speculation pays here, and no speedup is"
                " known."
            )
            return Answer(text, "mute", f"{why} {_MEASURE}")
        if said := undecided_sentence(judged):
            return Answer(_UNCERTAIN, "mute", " ".join(filter(None, (said, split, _MEASURE))))
        why = f"{why} {window.drafts:,.0f} drafts in the window."
        return Answer("Not enough traffic for a verdict.", "mute", why)

    if judged.by_speedup is None or speedup is None:
        text = f"{_by_rule([judged], model)} on average{_drafted(model)}."
        loses = verdict is Verdict.NET_NEGATIVE
        why = f"{why} {_measure_first(model)}" if loses else why
        return Answer(text, _tone([judged], model), why, about=(judged,))

    what = words_of(verdict, is_guess=False)
    if verdict is not Verdict.BREAK_EVEN:
        what = f"{what}: it {effect(speedup)}"
    text = f"Speculation {what} on average{_at_load(model)}."
    why = f"With prefill, decoding is {times_as_fast(speedup)}. {why}"
    return Answer(text, TONES[verdict], why, about=(judged,))


def _without_loops(evidence: Evidence) -> str:
    """The acceptance rate without repetition loops, where these matter."""
    loops = evidence.loops
    if loops is None or loops.without is None or not loops.flatter:
        return ""
    return f" ({percent(loops.without)} without repetition loops)"


def _at_load(model: ModelReport) -> str:
    """The load for which the answer holds."""
    steps = model.speed.steps if model.speed else None
    each = f" on each of {len(model.engines)} engines" if len(model.engines) > 1 else ""
    return f", with {counted(round(steps.running), 'request')} running{each}" if steps else ""


def _drafted(model: ModelReport) -> str:
    """How many steps have a draft, unless almost all do.

    This is for a verdict by acceptance, which is about drafts alone.
    """
    steps = model.speed.steps if model.speed else None
    share = steps.drafted_share if steps else 1.0
    if share >= ALMOST_ALL:
        return ""
    return f"; only {percent(share)} of all requests' steps have a draft"


def per_step(steps: Steps) -> str:
    """The tokens that a request gets from a step, as a phrase."""
    return (
        f"{steps.tokens_per_step:.2f} tokens per step, with a draft in"
        f" {percent(steps.drafted_share)} of the steps"
    )


def _listed(split: Split) -> str:
    parts = [
        f"{percent(bucket.judgement.acceptance)} at T {bucket.temperature}" for bucket in split
    ]
    return f"Acceptance rate by temperature: {', '.join(parts)}."


def times_as_fast(speedup: Speedup) -> str:
    """The ratio as a phrase, with twice its standard error."""
    return f"{plus_minus(speedup)} times as fast as without speculation"


def effect(speedup: Speedup) -> str:
    """The time saved or lost per token, as a phrase."""
    return f"{_changes(speedup)} per token"


def _changes(speedup: Speedup) -> str:
    return f"{'saves' if speedup.ratio >= 1 else 'costs'} {_gained(speedup)}"


def leaning_effect(speedup: Speedup) -> str:
    """The same where the interval of the ratio reaches across a threshold."""
    return _leaning(speedup, effect(speedup))


def _gained(speedup: Speedup) -> str:
    """The absolute difference between the plain and the actual time per token."""
    return latency(abs(speedup.plain_seconds - speedup.actual_seconds))
