"""``mismatch``: almost no draft token is accepted, so the draft does not fit its target."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.engine.methods import drafts_with_a_model
from sidecar.findings.cached_prefix import cached_prefix_sentence
from sidecar.findings.ending import READ_A_REPLY, replies_sentence
from sidecar.findings.explanation import Explanation, speculating_engine, speculation_of
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.paste import AFTER_A_RESTART
from sidecar.requests.messages import Configuration, Speculation
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import percent

_CODE: Final = "mismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch(Finding):
    """The draft tokens are rejected from the first position on, at any temperature."""

    code: str = field(default=_CODE, init=False)
    acceptance: float | None


def mismatch(model: ModelReport, _: Thresholds) -> Iterator[Mismatch]:
    """The finding, if the verdict says that acceptance has collapsed."""
    judgement = model.judgement
    if judgement.has_collapsed:
        yield Mismatch(acceptance=judgement.acceptance, cost=1.0)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

_UPDATED: Final = (
    "Only where the target's weights are updated in place, as in reinforcement learning, a restart"
    " does not help: update the draft with them."
)
_SLEPT: Final = (
    "After a sleep of level 2, vLLM 0.32 loads only the target's weights again: let it sleep at"
    " level 1."
)
_RESTART: Final = "Restart vLLM; if the rate stays, check that the draft was made for this target."
_IF_WRONG: Final = "If it is wrong, take the pod out of traffic."
_NOTHING_REPEATS: Final = (
    "Nothing in such text helps to guess what follows: draft with a model, or remove"
    " --speculative-config."
)


def collapse_sentence(model: ModelReport) -> str:
    """What to do first where almost no draft token is accepted."""
    has_model = drafts_with_a_model(speculation_of(model).method)
    remedy = _RESTART if has_model else _NOTHING_REPEATS
    return " ".join(filter(None, [READ_A_REPLY, _IF_WRONG, cached_prefix_sentence(model), remedy]))


def _mismatch(finding: Mismatch, model: ModelReport) -> Explanation:
    configuration = speculating_engine(model).configuration
    has_model = drafts_with_a_model(speculation_of(model).method)
    unless = f" {_UPDATED} {_SLEPT}" if has_model else ""
    rate = percent(finding.acceptance or 0.0)
    remedy = _match(configuration, speculation_of(model))

    return Explanation(
        code=finding.code,
        what=(
            f"Almost no draft tokens are accepted ({rate}), at any temperature and from the first"
            f" position on. High temperatures alone do not cause this. {replies_sentence(model)}"
        ),
        remedy=f"{cached_prefix_sentence(model)} {remedy}".strip(),
        expect=(
            "A draft that matches has its first token accepted far more often, even at high"
            f" temperatures.{unless}"
        ),
        verify=AFTER_A_RESTART,
    )


def _match(configuration: Configuration, speculation: Speculation) -> str:
    if not drafts_with_a_model(speculation.method):
        return _NOTHING_REPEATS

    target = configuration.quantization
    draft = speculation.draft_quantization
    quantization = "quantization"
    if target or draft:
        quantization += f" (target: {target or 'none'}, draft: {draft or 'none'})"
    longest = ""
    if speculation.draft_max_model_len is not None and configuration.model_runner_v2 is False:
        longest = (
            " On model runner V1, no draft token of a batch is accepted while one of its requests"
            f" is longer than the draft's longest length, here {speculation.draft_max_model_len:,}"
            " tokens."
        )

    return (
        "Restart vLLM. If that does not help, remove --speculative-config until you know why the"
        f" draft does not fit this target: its vocabulary, chat template, {quantization} or vLLM's"
        f" version.{longest}"
    )


MISMATCH: Final = FindingKind(
    code=_CODE,
    gate=mismatch,
    place=Place.COLLAPSE,
    explain=_mismatch,
    why="almost nothing is accepted",
    remedy="restart vLLM; check that the draft fits its target",
    runbook="SpecDecodeAcceptanceCollapsed",
)
