"""Production's acceptance in the form that vLLM replays, for ``report --profile``.

With ``rejection_sample_method`` "synthetic", vLLM accepts draft tokens at given rates, whatever
they are (``SpeculativeConfig`` in vllm/config/speculative.py; read in 0.20.2, 0.27.1 and 0.32). Its
``synthetic_acceptance_rates`` has a rate for each of the ``num_speculative_tokens`` positions. The
rates are unconditional: the probability that the draft tokens up to and including that position are
all accepted. They lie from 0 to 1 and never rise from one position to the next; otherwise vLLM does
not start.

Everything here comes from a sidecar's JSON (``/api/v1/status``). The counts are totals since vLLM
started, as there are more of them than in the sliding window.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, Final

from sidecar.analysis.evidence import SYNTHETIC
from sidecar.engine.names import Counter
from sidecar.requests.tally import MAX_POSITIONS
from sidecar.wording.numbers import aligned, count, markdown, ratio

ALL: Final = "all"  # the temperatures together
ENOUGH_DRAFTS: Final = 1000
"""Drafts that a profile needs.

If drafts were independent, the acceptance length of so many would have a standard error of about 2
percent. Those of one request are not quite, so it is somewhat larger.
"""
_DECIMALS: Final = 4  # of the rates
_NOTICEABLE: Final = 0.01  # difference between two lengths, as a share of the shorter one

_Json = Mapping[str, Any]
_Table = Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The acceptance at one temperature, or at all.

    ``rates`` are vLLM's ``synthetic_acceptance_rates``, 0 to 1. ``length`` is the acceptance length
    that vLLM had: tokens per verification step, the bonus token included. At positions after the
    first ``drafted_positions`` no draft had a token, and the rates are 0.
    """

    temperature: str
    drafts: int
    rates: tuple[float, ...]
    length: float
    drafted_positions: int

    @property
    def full_length(self) -> float:
        """The acceptance length if each draft has a token at every position.

        It is above ``length`` where drafts were shorter.
        """
        return 1 + sum(self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """The profiles of one model: of all temperatures together, then of each.

    ``missing`` is a sentence that says why there are none; None if there are. ``options`` is the
    engine's own --speculative-config; None if no plug-in reports it. ``too_few`` has the drafts of
    the temperatures that have fewer than ``ENOUGH_DRAFTS``.
    """

    model_name: str
    missing: str | None = None
    profiles: tuple[Profile, ...] = ()
    options: _Json | None = None
    too_few: Mapping[str, int]

    def config(self, profile: Profile) -> dict[str, Any]:
        """The --speculative-config that replays ``profile``.

        Without ``options`` it is only what one has to add to one's own.
        """
        options = dict(self.options or {})
        options["rejection_sample_method"] = SYNTHETIC
        options["synthetic_acceptance_rates"] = list(profile.rates)
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Drafts since vLLM started, and by position how many had and accepted a token there.

    vLLM accepts a token only if it has accepted all before it, so these are counts of drafts whose
    tokens up to and including that position were accepted.
    """

    drafts: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Pool:
    """Neighbouring positions that share one rate."""

    accepted: int
    drafted: int
    positions: int

    @property
    def rate(self) -> float:
        return min(self.accepted / self.drafted, 1.0)

    def joined(self, other: "_Pool") -> "_Pool":
        return _Pool(
            self.accepted + other.accepted,
            self.drafted + other.drafted,
            self.positions + other.positions,
        )


def model_profiles(status: _Json) -> list[ModelProfile]:
    """The profile of each model in a sidecar's JSON; none while vLLM's metrics cannot be read.

    Raises:
        LookupError, TypeError, ValueError: the JSON is not a sidecar's.
    """
    models = status["models"] if status["scrape"]["up"] else ()
    return [_model_profile(model) for model in models]


def profiles_json(models: Sequence[ModelProfile]) -> dict[str, Any]:
    """The profiles for scripts."""
    return {"since": "vLLM's start", "models": [_model_json(model) for model in models]}


def profile_lines(model: ModelProfile, *, is_markdown: bool = False) -> Iterator[str]:
    """The profiles of a model as text or Markdown; nothing if there are none."""
    if model.missing is not None:
        return

    table: _Table = markdown if is_markdown else aligned
    item = "- " if is_markdown else "  "
    positions = len(model.profiles[0].rates)
    header = ["temperature", "drafts", "length"]
    header += [f"position {position}" for position in range(1, positions + 1)]

    yield f"model {model.model_name}: acceptance since vLLM started"
    yield ""
    yield from table(header, [_row(profile) for profile in model.profiles])
    yield ""
    yield (
        "The rates are vLLM's synthetic_acceptance_rates: the share of drafts whose tokens up to"
        " and including that position are all accepted. The length is in tokens per verification"
        " step."
        " vLLM applies one list to all requests, whatever their temperature."
    )
    if model.options is None:
        yield "This vLLM's own --speculative-config is not known here; add the following to it."

    for profile in model.profiles:
        yield ""
        yield f"{_title(profile)}:"
        yield f"{item}--speculative-config {quote(json.dumps(model.config(profile)))}"

    notes = list(_notes(model))
    yield from ("", *(f"{item}{note}" for note in notes)) if notes else ()


def _model_profile(model: _Json) -> ModelProfile:
    speculations = [
        engine["speculation"] for engine in model["engines"] if engine["speculation"] is not None
    ]
    depths = {each["num_speculative_tokens"] for each in speculations}
    if not depths:
        by_position = [engine["accepted_per_position"] for engine in model["engines"]]
        depths = {len(accepted) for accepted in by_position if accepted}

    positions = max(depths, default=0)
    by_temperature = {
        part["temperature"]: _tally_counts(part["tally"], positions)
        for part in model["temperatures"]
    }
    whole = _sum(by_temperature.values()) if by_temperature else _vllms_counts(model["engines"])
    too_few = {
        label: counts.drafts
        for label, counts in by_temperature.items()
        if 0 < counts.drafts < ENOUGH_DRAFTS
    }
    missing = _missing(speculations, depths, whole)
    if missing is not None:
        return ModelProfile(model_name=model["model_name"], missing=missing, too_few=too_few)

    profiles = [_profile(ALL, whole)]
    for label, counts in by_temperature.items():
        if counts.drafts >= ENOUGH_DRAFTS:
            profiles.append(_profile(label, counts))

    return ModelProfile(
        model_name=model["model_name"],
        profiles=tuple(profiles),
        options=_options(speculations),
        too_few=too_few,
    )


def _missing(speculations: Sequence[_Json], depths: set[int], whole: _Counts) -> str | None:
    """Why there is no profile; None if there is one."""
    positions = max(depths, default=0)
    is_synthetic = any(each["rejection_sample_method"] == SYNTHETIC for each in speculations)
    is_known = len(whole.accepted_at) == positions and any(whole.drafted_at)

    reasons = {
        "this vLLM itself accepts draft tokens at synthetic rates, which say nothing of"
        " production.": is_synthetic,
        "vLLM has drafted nothing since it started.": not whole.drafts,
        "its engines draft different numbers of tokens, and a profile is of one number.": (
            len(depths) > 1
        ),
        f"vLLM drafts up to {positions} tokens, and acceptance by position is counted for"
        f" {MAX_POSITIONS} at most.": positions > MAX_POSITIONS,
        "acceptance by position is not known.": not is_known,
        f"vLLM has made {whole.drafts:,} drafts since it started, and a profile needs"
        f" {ENOUGH_DRAFTS:,}.": whole.drafts < ENOUGH_DRAFTS,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _tally_counts(tally: _Json, positions: int) -> _Counts:
    """The plug-in's counts; its lists end at the last position that was drafted."""
    drafted_at = tuple(tally["drafted_at"])
    accepted_at = tuple(tally["accepted_at"])
    return _Counts(
        drafts=tally["drafts"],
        drafted_at=drafted_at + (0,) * (positions - len(drafted_at)),
        accepted_at=accepted_at + (0,) * (positions - len(accepted_at)),
    )


def _vllms_counts(engines: Sequence[_Json]) -> _Counts:
    """The counts of vLLM itself, which do not say how many drafts had a token at a position.

    So they count as if all had, and a rate is lower than the plug-in's where drafts were shorter.
    """
    drafts = round(sum(engine["counters"].get(Counter.DRAFTS, 0) for engine in engines))
    by_position = [engine["accepted_per_position"] for engine in engines]
    by_position = [accepted for accepted in by_position if accepted]
    accepted_at = tuple(round(sum(each)) for each in zip(*by_position, strict=False))
    drafted_at = (drafts,) * len(accepted_at)
    return _Counts(drafts=drafts, drafted_at=drafted_at, accepted_at=accepted_at)


def _sum(parts: Iterable[_Counts]) -> _Counts:
    parts = list(parts)
    return _Counts(
        drafts=sum(part.drafts for part in parts),
        drafted_at=tuple(map(sum, zip(*(part.drafted_at for part in parts), strict=False))),
        accepted_at=tuple(map(sum, zip(*(part.accepted_at for part in parts), strict=False))),
    )


def _profile(temperature: str, counts: _Counts) -> Profile:
    drafted_positions = sum(1 for drafted in counts.drafted_at if drafted)
    accepted_at = counts.accepted_at[:drafted_positions]
    never_drafted = len(counts.drafted_at) - drafted_positions
    rates = _non_increasing(accepted_at, counts.drafted_at[:drafted_positions])

    return Profile(
        temperature=temperature,
        drafts=counts.drafts,
        rates=tuple(round(rate, _DECIMALS) for rate in rates) + (0.0,) * never_drafted,
        length=1 + sum(accepted_at) / counts.drafts,
        drafted_positions=drafted_positions,
    )


def _non_increasing(accepted_at: Sequence[int], drafted_at: Sequence[int]) -> list[float]:
    """Accepted / drafted at each position, with neighbours merged where the rate would rise.

    It rises where the longer drafts are the better ones, as with n-gram. A merged rate (pool
    adjacent violators) accepts as many tokens of the same drafts, so the acceptance length stays.
    """
    pools: list[_Pool] = []
    for accepted, drafted in zip(accepted_at, drafted_at, strict=True):
        pool = _Pool(accepted, drafted, 1)
        while pools and pool.rate > pools[-1].rate:
            pool = pools.pop().joined(pool)
        pools.append(pool)
    return [pool.rate for pool in pools for _ in range(pool.positions)]


def _options(speculations: Sequence[_Json]) -> _Json | None:
    """The --speculative-config of the first engine that tells it."""
    for speculation in speculations:
        if speculation["options"] is not None:
            options: _Json = json.loads(speculation["options"])
            return options
    return None


def _row(profile: Profile) -> list[str]:
    rates = [ratio(rate) for rate in profile.rates]
    return [profile.temperature, count(profile.drafts), f"{profile.length:.3f}", *rates]


def _title(profile: Profile) -> str:
    if profile.temperature == ALL:
        return "all temperatures together"
    return f"temperature {profile.temperature}"


def _notes(model: ModelProfile) -> Iterator[str]:
    """What a benchmark does not replay as it was."""
    for profile in model.profiles:
        positions = len(profile.rates)
        if profile.drafted_positions < positions:
            yield (
                f"{_title(profile)}: no draft had more than {profile.drafted_positions} of"
                f" {positions} tokens; the rates after that are 0."
            )
        if profile.full_length > profile.length * (1 + _NOTICEABLE):
            yield (
                f"{_title(profile)}: drafts were shorter than {positions} tokens. Where those of a"
                f" benchmark are as short, its length is {profile.length:.3f}; where all are full,"
                f" {profile.full_length:.3f}."
            )

    for label, drafts in model.too_few.items():
        yield f"temperature {label}: {drafts:,} drafts; a profile needs {ENOUGH_DRAFTS:,}."


def _model_json(model: ModelProfile) -> dict[str, Any]:
    return {
        "model_name": model.model_name,
        "missing": model.missing,
        "is_whole_config": model.options is not None,
        "too_few_drafts": dict(model.too_few),
        "profiles": [
            {
                "temperature": profile.temperature,
                "drafts": profile.drafts,
                "acceptance_length": profile.length,
                "acceptance_length_of_full_drafts": profile.full_length,
                "synthetic_acceptance_rates": list(profile.rates),
                "drafted_positions": profile.drafted_positions,
                "speculative_config": model.config(profile),
            }
            for profile in model.profiles
        ],
    }
