"""Which methods of speculation to try first with a model's traffic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.analysis.checklist.traffic import MOST, Traffic
from sidecar.engine.methods import (
    ASYNC_SCHEDULING,
    RUNNER_V2,
    can_sample_drafts,
    drafts_by_token,
    drafts_with_a_model,
    given_up,
    offers_sampled_drafts,
)
from sidecar.requests.messages import Hello

HEAD_MODEL: Final = "YOUR-EAGLE3-HEAD"
DRAFT_MODEL: Final = "YOUR-DRAFT-MODEL"
_EAGLE3: Final = "eagle3"
_DRAFT: Final = "draft_model"
_SUFFIX: Final = "suffix"
_SUFFIX_TOKENS: Final = 12  # as in docs/measurements/speedup.md
_SAMPLES: Final = 0.3  # share of hot requests from which on drafts are to be sampled
_REPEATS: Final = 0.3  # share of the requests whose outputs probably repeat much


class Reason(StrEnum):
    """Why a method is to be tried."""

    GUESSES_BEST = "guesses_best"  # a head that was trained for this model
    NO_HEAD = "no_head"  # a small model of the family, where there is no such head
    REPEATS = "repeats"  # structured output and long prompts repeat much, which needs no model


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One method to try; ``options`` are its whole --speculative-config.

    ``gives_up`` is what vLLM does without because of it. ``is_ruled``: its acceptance rate alone
    says something. ``has_model``: a model or a head of one drafts, so each draft token costs time.
    """

    method: str
    reason: Reason
    options: Mapping[str, str | int]
    gives_up: tuple[str, ...]
    is_ruled: bool
    has_model: bool

    @property
    def samples_drafts(self) -> bool:
        """Whether its drafts are sampled."""
        return "draft_sample_method" in self.options


def candidates(traffic: Traffic, tokens: int, hello: Hello | None) -> Iterator[Candidate]:
    """The two to try first, in this order.

    A model drafts so many ``tokens``. ``hello`` says what the engine has to give up, and its vLLM's
    version; without one it is taken for the latest.
    """
    vllm = hello.vllm if hello is not None else None
    are_sampled = traffic.hot >= _SAMPLES and offers_sampled_drafts(vllm)
    repeats = max(traffic.structured, traffic.long_prompts) >= _REPEATS

    drafted = {"num_speculative_tokens": tokens}
    head = _candidate(
        _EAGLE3,
        Reason.GUESSES_BEST,
        {"model": HEAD_MODEL, **drafted, **_sampled(_EAGLE3, are_sampled=are_sampled)},
        hello,
    )
    if repeats and traffic.hot < MOST:
        options = {"num_speculative_tokens": _SUFFIX_TOKENS}
        yield _candidate(_SUFFIX, Reason.REPEATS, options, hello)
        yield head
    else:
        yield head
        yield _candidate(
            _DRAFT,
            Reason.NO_HEAD,
            {"model": DRAFT_MODEL, **drafted, **_sampled(_DRAFT, are_sampled=are_sampled)},
            hello,
        )


def _sampled(method: str, *, are_sampled: bool) -> dict[str, str]:
    """The option that samples a model's drafts, where that is wanted and of use."""
    can_sample = can_sample_drafts(method, in_parallel=False, architectures=())
    return {"draft_sample_method": "probabilistic"} if are_sampled and can_sample else {}


def _candidate(
    method: str, reason: Reason, options: Mapping[str, str | int], hello: Hello | None
) -> Candidate:
    return Candidate(
        method=method,
        reason=reason,
        options={"method": method, **options},
        gives_up=() if hello is None else _given_up(method, hello),
        is_ruled=drafts_by_token(method, in_parallel=False),
        has_model=drafts_with_a_model(method),
    )


def _given_up(method: str, hello: Hello) -> tuple[str, ...]:
    """What the engine has now, and not with the method."""
    configuration = hello.configuration
    has = {
        ASYNC_SCHEDULING: configuration.async_scheduling,
        RUNNER_V2: configuration.model_runner_v2,
    }
    lost = given_up(method, hello.vllm, runner_v2=configuration.model_runner_v2)
    return tuple(one for one in lost if has[one])
