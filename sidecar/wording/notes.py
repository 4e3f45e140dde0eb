"""What a judgement, its evidence and its advice mean, and what vLLM's page does not tell."""

from collections.abc import Iterable, Iterator
from typing import Final

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.evidence import CONFIDENCE, Evidence
from sidecar.analysis.judgement import Basis, Judgement, Verdict
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.verdict import MARGIN
from sidecar.engine.methods import ASYNC_SCHEDULING, RUNNER_V2, given_up
from sidecar.engine.names import Gauge
from sidecar.findings.finding import advised
from sidecar.findings.greedy_drafting import GreedyDrafting
from sidecar.findings.load import Load
from sidecar.findings.mismatch import Mismatch
from sidecar.findings.number_of_tokens import NumberOfTokens
from sidecar.findings.room import Room, is_short_of_room, lets_many_wait, waiting_for_room
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.advice import fitting_sentence, schedule_sentence
from sidecar.wording.finer import finer_hints
from sidecar.wording.numbers import counted, duration, percent
from sidecar.wording.speed import unsized_hint, why_withheld
from sidecar.wording.tables import group_name
from sidecar.wording.verdicts import is_guess, verdict_words

_SOON: Final = 120.0  # seconds; what is nearer is not told more exactly
# What there is too little of, and the setting that asks for more.
_BELOW: Final = {
    "min_requests": "fewer than {:g} requests (thresholds.min_requests)",
    "min_drafts_per_second": "fewer than {:g} drafts a second (thresholds.min_drafts_per_second)",
    "min_bucket_share": "less than {:.0%} of the draft tokens (thresholds.min_bucket_share)",
}
ALMOST_ALL: Final = 0.95
"""Share of the steps with a draft from which on those without one are not worth a word."""
LIMITATIONS: Final = {
    Limitation.V0_COUNTERS: (
        "vLLM's V0 engine adds its totals to its speculation counters again every 5 s, so the"
        " sidecar does not export them and has no acceptance rate. Use the V1 engine: vLLM 0.11 or"
        " later, or VLLM_USE_V1=1."
    ),
    Limitation.NO_SPECULATION: (
        "vLLM exports no spec_decode counters: it runs without --speculative-config."
    ),
    Limitation.NOTHING_DRAFTED: (
        "Nothing has been drafted, so this vLLM is taken for one without --speculative-config: its"
        " Rust frontend exports the counters of drafts in either case. With the plug-in, that is"
        " known before the first draft."
    ),
    Limitation.DIFFUSION: "A diffusion model does not draft, so it has no acceptance rate.",
    Limitation.NO_REQUEST_TPOT: (
        "vLLM before 0.11 does not export the time per output token. Its inter-token latency has"
        " one observation per engine step and may rise as the acceptance rate improves."
    ),
    Limitation.NO_POSITIONS: (
        "This vLLM does not export accepted tokens by draft position. Upgrade vLLM."
    ),
    Limitation.NO_KV_CACHE_CAPACITY: (
        "This vLLM does not export the capacity of the KV cache. Python's API server does, in all"
        " tested versions from 0.10 on; the Rust frontend does not."
    ),
    Limitation.SEVERAL_PROCESSES: (
        "vLLM's /metrics is a sum over several API servers, or over files in the directory that its"
        " environment variable PROMETHEUS_MULTIPROC_DIR names: a restart shows only when counters"
        " fall. If one API server is enough, set --api-server-count 1 and"
        " unset PROMETHEUS_MULTIPROC_DIR."
    ),
    Limitation.RUST_FRONTEND: (
        "vLLM's Rust frontend serves its /metrics (VLLM_USE_RUST_FRONTEND=1), without a start time,"
        " so a restart shows only when counters fall, and without whether vLLM sleeps."
    ),
    Limitation.CONTRADICTORY_COUNTERS: (
        "vLLM's counters contradict each other: it counted more accepted tokens than drafted ones,"
        " in all or at one position, so there is no acceptance rate and no verdict. Look for a bug"
        " of this vLLM or of what drafts in it."
    ),
    Limitation.SEVERAL_SENDERS: (
        "Several plug-ins are connected to this sidecar's socket as this engine, and nothing tells"
        " which of them is this vLLM's, so none of them counts. Give each vLLM a sidecar and a"
        " socket of its own: SPECDEC_PLUGIN__SOCKET, the same path for both."
    ),
}
# They keep the distribution.
_EXACT_SAMPLERS: Final = frozenset({None, "standard", "block", "strict", "probabilistic"})
_ADAPTIVE: Final = (
    "Verification is adaptive: vLLM's counters include draft tokens that were never verified, so"
    " the acceptance rate is not meaningful, and only a measured speedup decides."
)
_LOSSY: Final = (
    "rejection_sample_method {} also accepts tokens that the model itself would not have sampled:"
    " part of the acceptance rate comes at the cost of quality."
)
_UNRULED: Final = (
    "The rule of thumb on the acceptance rate is for models that draft token by token, and method"
    " {} does not: only a measured speedup tells whether it pays. Measure a baseline with"
    " `specdec-sidecar baseline`."
)
_GIVEN_UP: Final = (
    "With method {}, vLLM does not use {}, which it uses by default without speculation (on GPUs)."
    " That is part of the method's price, and only a baseline shows it."
)
_NO_CONFIGURATION: Final = Configuration()
_RECEIVES_KV_CACHE: Final = frozenset({"kv_consumer", "kv_both"})
# vLLM cannot turn speculation off for single requests, and other pods for those of one temperature
# seldom pay (docs/measurements/routing.md).
_FEWER: Final = "Speculate fewer tokens (num_speculative_tokens)."
_OFF: Final = "Turn speculation off (remove --speculative-config)."
_FEWER_OR_OFF: Final = (
    "Speculate fewer tokens (num_speculative_tokens), or turn speculation off (remove"
    " --speculative-config)."
)
_OFF_IF_ALL_LOSE: Final = "If the model as a whole loses, turn speculation off."
_OTHERS_GAIN: Final = (
    "The model as a whole gains: fewer draft tokens (num_speculative_tokens) would help these"
    " requests, at the expense of those that gain."
)


def _has_finding_on_tokens(model: ModelReport) -> bool:
    """Whether a finding is about the number of draft tokens, or changes what it follows from."""
    about = NumberOfTokens | Load | GreedyDrafting | Mismatch
    return any(isinstance(finding, about) for finding in model.findings)


def fitting_note(model: ModelReport) -> str:
    """That the number of draft tokens fits; empty where something else asks to change it."""
    verdicts = {model.judgement.verdict, *(one.judgement.verdict for one in model.temperatures)}
    pays = model.judgement.verdict is Verdict.NET_POSITIVE
    is_remedied = Verdict.NET_NEGATIVE in verdicts and not pays
    if is_remedied or _has_finding_on_tokens(model) or room_sentence(model):
        return ""
    return fitting_sentence(model.advice)


def model_notes(model: ModelReport) -> list[str]:
    """What to know about a model as a whole, and to do, most important first."""
    judgement = model.judgement
    note = judgement_note(judgement, is_explained=bool(advised(model.findings)))

    advice = model.advice
    schedule = "" if advice is None or _has_finding_on_tokens(model) else schedule_sentence(advice)

    has_room_finding = any(isinstance(finding, Room) for finding in model.findings)
    room_note = "" if has_room_finding else room_sentence(model)

    speculating = (engine for engine in model.engines if engine.speculation is not None)
    configured = next(speculating, None)
    configuration = _NO_CONFIGURATION if configured is None else configured.configuration
    vllm = None if configured is None else configured.vllm
    notes = [
        *filter(
            None,
            (
                *(note, own_sentence(model), room_note, loops_sentence(judgement.evidence)),
                *(undrafted_sentence(model), schedule),
            ),
        ),
        *caveats(judgement.evidence, configuration, vllm),
        *_placeholders(model),
    ]
    return [*notes, *_losing_engines(model)]


def own_sentence(model: ModelReport) -> str:
    """That this product's own commands ask the model as well; empty if they do not."""
    own = model.own
    if not (own.requests or own.drafts):
        return ""
    return (
        f"In the last {duration(own.seconds)}, {counted(own.requests or 0, 'request')} of the"
        " sidecar's own commands (baseline, sweep, compare or fidelity) finished. They count in no"
        " temperature, finding or checklist. vLLM's counters include them, and so do the acceptance"
        " rate and the speed of all requests together."
    )


def undrafted_sentence(model: ModelReport) -> str:
    """That steps had no draft since the schedule has none at their load; empty if few had none."""
    steps = model.speed.steps if model.speed is not None else None
    loads = resting_loads(model.engines)
    if not loads or steps is None or steps.drafted_share >= ALMOST_ALL:
        return ""
    return (
        f"{percent(1 - steps.drafted_share)} of all requests' steps had no draft: vLLM's schedule"
        f" by batch size drafts none with {loads} requests running."
    )


def resting_loads(engines: Iterable[EngineReport]) -> str:
    """The numbers of requests at which the engines' schedule drafts nothing; empty if it has none.

    They are configured alike.
    """
    schedules = (one.speculation.schedule for one in engines if one.speculation is not None)
    schedule = next(filter(None, schedules), ())

    # Between two ranges, and after the last one, the one before goes on.
    ends = [first - 1 for first, *_ in schedule[1:]]
    resting = [
        f"{first} to {end}"
        for (first, _, tokens), end in zip(schedule, ends, strict=False)
        if tokens == 0
    ]
    if schedule and schedule[-1][2] == 0:
        resting.append(f"{schedule[-1][0]} or more")
    return " or ".join(resting)


def room_sentence(model: ModelReport) -> str:
    """That requests wait for room, which no acceptance rate shows; empty if none does."""
    speculating = any(engine.acceptance is not None for engine in model.engines)
    if not speculating or not is_short_of_room(model):
        return ""

    running = sum(engine.gauges.get(Gauge.REQUESTS_RUNNING, 0.0) for engine in model.engines)
    waiting = sum(waiting_for_room(one) for one in model.engines if lets_many_wait(one))
    wait = f"{counted(waiting, 'request')} waiting for room" if waiting else "some are preempted"
    return (
        f"{counted(running, 'request')} running, and {wait}. Draft tokens take room in the KV cache"
        " (a state-space model reserves a state for each), so fewer of them may let more requests"
        " run, which no acceptance rate shows: compare without speculation at this load."
    )


def loops_sentence(evidence: Evidence) -> str:
    """The acceptance rate with and without repetition loops; empty if they hardly matter."""
    loops = evidence.loops
    if loops is None or not loops.flatter:
        return ""

    rate = percent(loops.rate)
    share = percent(loops.share)
    if loops.without is None:
        return (
            f"{share} of the draft tokens of finished requests are of replies that repeat"
            f" themselves. Such loops are easy to draft ({rate} accepted), so the acceptance rate"
            " says little about other text."
        )
    return (
        f"Without replies that repeat themselves, the acceptance rate is {percent(loops.without)}"
        f" rather than {percent(loops.whole)}: such loops are easy to draft ({rate} accepted), and"
        f" hold {share} of the draft tokens of finished requests."
    )


def _placeholders(model: ModelReport) -> Iterator[str]:
    """How far placeholder drafts bias the acceptance rate of a pod that only decodes."""
    for engine in model.engines:
        accepted = engine.acceptance
        if engine.configuration.kv_connector_role not in _RECEIVES_KV_CACHE:
            continue
        if engine.speculation is None or accepted is None or not engine.cache.requests > 0:
            continue

        placeholders = engine.cache.requests * engine.speculation.num_speculative_tokens
        share = min(placeholders / accepted.draft_tokens, 1.0)
        yield (
            f"Engine {engine.key.engine} receives KV caches from other pods. vLLM counts"
            f" {engine.speculation.num_speculative_tokens} placeholder draft tokens for each such"
            f" request and accepts none of them: up to {percent(share)} of the draft tokens, so"
            " the acceptance rate is that much too low, at temperature 0 as elsewhere."
        )


def judgement_note(
    judgement: Judgement, whole: Judgement | None = None, *, is_explained: bool = False
) -> str:
    """What a verdict is of, and what keeps it from being reached or from rising.

    ``whole`` is the judgement on the model, where this one is on a temperature. Where it is net
    negative, also what to do, unless ``is_explained``: findings say that, and the answer does of a
    collapse. Empty if there is nothing to say.
    """
    if (gate := judgement.gate) is not None:
        return f"No verdict: {_BELOW[gate.threshold].format(gate.value)}."

    has_collapsed = (whole or judgement).has_collapsed
    loses = judgement.verdict is Verdict.NET_NEGATIVE
    says_more = loses and not is_explained and not has_collapsed
    remedy = _remedy(judgement, whole) if says_more else ""
    return " ".join(
        filter(None, (_hour(judgement), undecided_sentence(judgement), _held(judgement), remedy))
    )


def undecided_sentence(judgement: Judgement) -> str:
    """Why there is no verdict by the acceptance rate yet, and about when there will be one."""
    undecided = judgement.undecided
    if undecided is None:
        return ""

    rate = f"{percent(undecided.rate)} ± {percent(CONFIDENCE * undecided.error)}"
    needed = undecided.needed
    when = "four hours of this traffic would not tell either"
    if needed is not None:
        when = f"it will be in about {duration(max(needed, _SOON))} if it stays as it is"
    return (
        f"Undecided: the acceptance rate of the last {duration(undecided.seconds)}, {rate}, is not"
        f" certain to be on one side of {percent(undecided.line)} yet; {when}."
    )


def _hour(judgement: Judgement) -> str:
    """That it is not the recent window that was judged, of which the numbers beside it are."""
    judged = judgement.judged
    window = judgement.evidence.window
    if judged is None or judged == window:
        return ""
    recent = f"the last {duration(window.seconds)} had too little traffic"
    return f"The acceptance rate is of the last {duration(judged.seconds)}, since {recent}."


def _held(judgement: Judgement) -> str:
    if judgement.basis is Basis.ACCEPTANCE:
        rate = percent(judgement.acceptance)
        says = (
            f"The acceptance rate is {rate} now; the verdict by the rule of thumb stays until"
            " another one is certain."
        )
        return says if judgement.is_kept else ""

    line = judgement.held_below
    if line is None:
        return ""

    bound = f"speedup minus {CONFIDENCE:g} standard errors"
    until = f"below {line + MARGIN:g}"
    if judgement.verdict is Verdict.NET_NEGATIVE:
        bound = "speedup"
        until = f"until it is half of its ± above it, at least {MARGIN:g}"

    return (
        f'The {bound} is back above {line:g}, but the verdict stays "{verdict_words(judgement)}"'
        f" {until}, so that it does not flap."
    )


def _remedy(judgement: Judgement, whole: Judgement | None) -> str:
    evidence = judgement.evidence
    judged = judgement.judged
    varies = not evidence.is_ruled or evidence.has_schedule
    is_one_token = judged is not None and len(judged.position_rates) == 1
    can_draft_fewer = not varies and not is_one_token

    if is_guess(whole or judgement):  # only a measured loss turns it off
        return _FEWER if can_draft_fewer else ""
    if whole is None:
        return _FEWER_OR_OFF if can_draft_fewer else _OFF
    if not can_draft_fewer:
        return _OFF_IF_ALL_LOSE
    return _OTHERS_GAIN if whole.verdict is Verdict.NET_POSITIVE else _FEWER


def _lost(speculation: Speculation, configuration: Configuration, vllm: str | None) -> list[str]:
    """What vLLM gives up, unless the engine says that it has it."""
    has = {
        ASYNC_SCHEDULING: configuration.async_scheduling,
        RUNNER_V2: configuration.model_runner_v2,
    }
    lost = given_up(speculation.method, vllm, runner_v2=configuration.model_runner_v2)
    graphs = ["full CUDA graphs"] * (
        speculation.per_batch_size and configuration.model_runner_v2 is False
    )
    return [one for one in lost if not has[one]] + graphs


def caveats(
    evidence: Evidence,
    configuration: Configuration = _NO_CONFIGURATION,
    vllm: str | None = None,
) -> Iterator[str]:
    """Why the acceptance rate misleads, and what the method costs that drafts do not show.

    ``vllm`` is the engine's version; an unknown one is taken for the latest.
    """
    if evidence.speculation is None or evidence.is_synthetic:  # a finding says all there is
        return

    sampler = evidence.speculation.rejection_sample_method
    method = evidence.speculation.method
    if evidence.is_adaptive:
        yield _ADAPTIVE
    elif evidence.speedup is None and not evidence.is_ruled:
        yield _UNRULED.format(method)

    if lost := _lost(evidence.speculation, configuration, vllm):
        schedule = ""
        if "full CUDA graphs" in lost and evidence.has_schedule:
            schedule = " and a schedule by batch size"
        yield _GIVEN_UP.format(f"{method}{schedule}", " and ".join(lost))

    if sampler not in _EXACT_SAMPLERS:
        yield _LOSSY.format(sampler)


def _losing_engines(model: ModelReport) -> Iterator[str]:
    """The engines that lose although the model as a whole does not."""
    judged = [engine for engine in model.engines if engine.judgement.is_known]
    if model.judgement.verdict is Verdict.NET_NEGATIVE or len(judged) == 1:
        return
    for engine in judged:
        if engine.judgement.verdict is Verdict.NET_NEGATIVE:
            yield f"Engine {engine.key.engine} loses on its own: {_grounds(engine.judgement)}."


def _grounds(judgement: Judgement) -> str:
    """What the verdict on an engine is based on, as a clause."""
    speedup = judgement.evidence.speedup
    if judgement.by_speedup is not None and speedup is not None:
        return f"decoding is {speedup.ratio:.2f} times as fast as without speculation"
    return f"it accepts {judgement.acceptance or 0:.0%} of its draft tokens"


def hints(model: ModelReport) -> list[str]:
    """What is missing in a model's report, and why.

    That is: why a model that speculates has no speedup and no estimate of what breaks even, which
    requests get no drafts, which temperatures share a row, and what vLLM's page does not tell.
    """
    # Without a plug-in's steps, why there is no split says it all.
    is_timed = model.speed is not None and model.speed.withheld is not Withheld.NO_STEPS
    why = why_withheld(model) if is_timed else ""
    speedup = [f"No speedup for {model.model_name}: {why}."] if why else []

    unsized = [hint] if (hint := unsized_hint(model)) else []
    quiet = [
        f"No drafts in the window for {group_name(group)}."
        for group in model.groups
        if group.without_drafts
    ]
    limitations = [
        LIMITATIONS[limitation]
        for engine in model.engines
        for limitation in sorted(engine.limitations)
    ]

    return [*speedup, *unsized, *quiet, *finer_hints(model), *dict.fromkeys(limitations)]
