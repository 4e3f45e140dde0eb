"""Which methods of speculation to try first with a model's traffic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.analysis.checklist.traffic import Traffic
from sidecar.analysis.engine.polled_load import PolledLoad
from sidecar.engine.methods import can_sample_drafts, drafts_by_token, given_up

HEAD_MODEL: Final = "YOUR-EAGLE3-HEAD"
DRAFT_MODEL: Final = "YOUR-DRAFT-MODEL"
_EAGLE3: Final = "eagle3"
_DRAFT: Final = "draft_model"
_SUFFIX: Final = "suffix"
_SUFFIX_TOKENS: Final = 12  # as in docs/measurements/speedup.md
_SAMPLES: Final = 0.3  # share of hot requests from which on drafts are to be sampled
_MOSTLY_HOT: Final = 0.6  # from which on little of what a suffix tree proposes is accepted
_REPEATS: Final = 0.3  # share of the requests whose outputs probably repeat much
# Draft tokens by the mean number of requests running on an engine: verification takes compute.
_TOKENS: Final = ((8, 3), (32, 2))
_FEWEST_TOKENS: Final = 1


class Reason(StrEnum):
    """Why a method is to be tried."""

    GUESSES_BEST = "guesses_best"  # a head that was trained for this model
    NO_HEAD = "no_head"  # a small model of the family, where there is no such head
    REPEATS = "repeats"  # structured output and long prompts repeat much, which needs no model


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One method to try; ``options`` are its whole --speculative-config.

    ``gives_up`` is what vLLM does without because of it. ``is_ruled``: its acceptance rate alone
    says something.
    """

    method: str
    reason: Reason
    options: Mapping[str, str | int]
    gives_up: tuple[str, ...]
    is_ruled: bool

    @property
    def samples_drafts(self) -> bool:
        """Whether its drafts are sampled."""
        return "draft_sample_method" in self.options


def candidates(traffic: Traffic, load: PolledLoad) -> Iterator[Candidate]:
    """The two to try first, in this order."""
    tokens = _tokens(load)
    repeats = max(traffic.structured, traffic.long_prompts) >= _REPEATS
    head = _drafter(_EAGLE3, HEAD_MODEL, Reason.GUESSES_BEST, tokens, traffic)

    if repeats and traffic.hot < _MOSTLY_HOT:
        yield _candidate(_SUFFIX, Reason.REPEATS, {"num_speculative_tokens": _SUFFIX_TOKENS})
        yield head
    else:
        yield head
        yield _drafter(_DRAFT, DRAFT_MODEL, Reason.NO_HEAD, tokens, traffic)


def _tokens(load: PolledLoad) -> int:
    """How many tokens a model drafts at this load."""
    running = load.running or 0.0
    return next((tokens for most, tokens in _TOKENS if running <= most), _FEWEST_TOKENS)


def _drafter(method: str, model: str, reason: Reason, tokens: int, traffic: Traffic) -> Candidate:
    """A model that drafts, sampled where enough of the requests are hot."""
    options: dict[str, str | int] = {"model": model, "num_speculative_tokens": tokens}
    can_sample = can_sample_drafts(method, in_parallel=False, architectures=())
    if can_sample and traffic.hot >= _SAMPLES:
        options["draft_sample_method"] = "probabilistic"
    return _candidate(method, reason, options)


def _candidate(method: str, reason: Reason, options: Mapping[str, str | int]) -> Candidate:
    return Candidate(
        method=method,
        reason=reason,
        options={"method": method, **options},
        gives_up=given_up(method),
        is_ruled=drafts_by_token(method, in_parallel=False),
    )
