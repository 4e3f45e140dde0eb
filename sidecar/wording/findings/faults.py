"""Findings on drafts that are never accepted or never made, in words."""

from typing import Final

from sidecar.analysis.findings.long_requests import LongRequests
from sidecar.analysis.findings.mismatch import Mismatch
from sidecar.analysis.findings.not_speculating import NotSpeculating
from sidecar.analysis.findings.synthetic_acceptance import SyntheticAcceptance
from sidecar.analysis.report import ModelReport
from sidecar.engine.methods import drafts_with_a_model
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.findings.endings import READ_A_REPLY, replies_sentence
from sidecar.wording.findings.explanation import (
    Explanation,
    Words,
    speculating_engine,
    speculation_of,
)
from sidecar.wording.numbers import counted, percent

_UPDATED: Final = (
    "If the target's weights are updated in place, as in reinforcement learning, update the draft"
    " with them: a restart does not help then. After a sleep of level 2, vLLM 0.32 loads only the"
    " target's weights again: restart it, or let it sleep at level 1."
)
_RESTART: Final = (
    f"Restart vLLM; check that the draft matches its target. {_UPDATED} High temperatures alone do"
    " not cause this."
)
_NOTHING_REPEATS: Final = (
    "Nothing in such text helps to guess what follows: draft with a model, or remove"
    " --speculative-config."
)


def collapse_sentence(model: ModelReport) -> str:
    """What to do first where almost no draft token is accepted."""
    has_model = drafts_with_a_model(speculation_of(model).method)
    return f"{READ_A_REPLY} {_RESTART if has_model else _NOTHING_REPEATS}"


def _mismatch(finding: Mismatch, model: ModelReport) -> Explanation:
    configuration = speculating_engine(model).configuration
    rate = percent(finding.acceptance or 0.0)

    return Explanation(
        code=finding.code,
        what=(
            f"Almost no draft tokens are accepted ({rate}), at any temperature and from the first"
            f" position on. High temperatures alone do not cause this. {replies_sentence(model)}"
        ),
        remedy=_match(configuration, speculation_of(model)),
        expect=(
            "A draft that matches has its first token accepted far more often, even at high"
            " temperatures."
        ),
        verify="`specdec-sidecar report` five minutes after the restart: the finding is gone.",
    )


def _match(configuration: Configuration, speculation: Speculation) -> str:
    if not drafts_with_a_model(speculation.method):
        return _NOTHING_REPEATS

    target = configuration.quantization or "none"
    draft = speculation.draft_quantization or "none"
    longest = ""
    if speculation.draft_max_model_len is not None and configuration.model_runner_v2 is False:
        longest = (
            " On model runner V1, no draft token of a batch is accepted while one of its requests"
            f" is longer than the draft's longest length, here {speculation.draft_max_model_len:,}"
            " tokens."
        )

    return (
        "Restart vLLM. If that does not help, check that the draft was made for this target: its"
        f" vocabulary, chat template, quantization (target: {target}, draft: {draft}) and vLLM's"
        f" version.{longest} {_UPDATED} Until then remove --speculative-config."
    )


MISMATCH: Final = Words(
    kind=Mismatch,
    explain=_mismatch,
    why="almost nothing is accepted",
    remedy="restart vLLM; check that the draft fits its target",
    runbook="SpecDecodeAcceptanceCollapsed",
)


def _not_speculating(finding: NotSpeculating, model: ModelReport) -> Explanation:
    engines = "Engines" if len(finding.engines) > 1 else "Engine"
    method = speculation_of(model).method or "an unknown method"

    return Explanation(
        code=finding.code,
        what=(
            f"{engines} {', '.join(finding.engines)} generated {finding.tokens:,.0f} tokens and"
            f" drafted none, although --speculative-config says {method}."
        ),
        remedy="Look in vLLM's log for what switched drafting off, and restart it.",
        expect="Until then the draft model takes memory and saves no time.",
        verify="`specdec-sidecar report` five minutes after the restart: the finding is gone.",
    )


NOT_SPECULATING: Final = Words(
    kind=NotSpeculating,
    explain=_not_speculating,
    why="configured to draft, it drafts nothing",
    remedy="find why in vLLM's log, restart it",
    runbook="SpecDecodeNotSpeculating",
)


def _synthetic_acceptance(finding: SyntheticAcceptance, _: ModelReport) -> Explanation:
    return Explanation(
        code=finding.code,
        what=(
            "rejection_sample_method is synthetic: vLLM accepts draft tokens at a set rate,"
            " whatever the model says of them. It is for benchmarks. Replies are not the model's,"
            " and neither acceptance nor time says whether speculation pays."
        ),
        remedy=(
            "Remove rejection_sample_method and the keys that begin with synthetic_ from"
            " --speculative-config, and restart vLLM."
        ),
        expect="Replies are the model's own again, and the acceptance rate is measured.",
        verify="`specdec-sidecar report` five minutes after the restart: the finding is gone.",
    )


SYNTHETIC_ACCEPTANCE: Final = Words(
    kind=SyntheticAcceptance,
    explain=_synthetic_acceptance,
    why="drafts are accepted at a set rate",
    remedy="remove rejection_sample_method, restart vLLM",
    runbook="SpecDecodeAcceptanceCollapsed",
)


def _long_requests(finding: LongRequests, _: ModelReport) -> Explanation:
    requests = counted(finding.requests, "request")
    return Explanation(
        code=finding.code,
        what=(
            f"At least {requests} in the window grew past {finding.longest:,} tokens, which is all"
            " that the draft can handle with its draft tokens. While one of them runs, model runner"
            " V1 accepts no draft token of any request in the batch: at least"
            f" {percent(finding.share)} of the time, at every temperature and length."
        ),
        remedy=(
            "If the draft was made for longer requests, raise its max_model_len in"
            " --speculative-config; else try model runner V2 (VLLM_USE_V2_MODEL_RUNNER=1), or"
            " route such requests to pods that do not speculate."
        ),
        expect="The other requests accept as much as while no such request runs.",
        verify="`specdec-sidecar report` five minutes after the restart: the finding is gone.",
    )


LONG_REQUESTS: Final = Words(
    kind=LongRequests,
    explain=_long_requests,
    why="a long request stops all drafts",
    remedy="raise the draft's max_model_len, or route these",
    runbook="SpecDecodeAcceptanceLow",
)

WORDS: Final = (MISMATCH, NOT_SPECULATING, SYNTHETIC_ACCEPTANCE, LONG_REQUESTS)
