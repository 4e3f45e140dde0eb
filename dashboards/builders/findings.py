"""Each finding in words.

Both pages show these in place of the codes, so that a reader sees the remedy without a click.
"""

from dataclasses import dataclass
from typing import Final

from dashboards.builders.query import copied, lately, relabelled, series
from dashboards.builders.tables import RUNBOOKS, Label
from sidecar.analysis.advice import FindingCode


@dataclass(frozen=True, slots=True)
class Words:
    """``why`` speculation loses or could gain more, and the ``remedy``.

    ``runbook`` is the alert whose runbook has the remedy's steps.
    """

    why: str
    remedy: str
    runbook: str


_LOW: Final = "SpecDecodeAcceptanceLow"
_PART: Final = "SpecDecodeAcceptanceP10Low"

FINDINGS: Final = {
    FindingCode.GREEDY_DRAFTING: Words(
        "hot requests reject the likeliest token",
        "try draft_sample_method probabilistic",
        "SpecDecodeAcceptanceLowAtTemperature",
    ),
    FindingCode.TOO_MANY_TOKENS: Words(
        "the last draft tokens cost more than they gain", "lower num_speculative_tokens", _LOW
    ),
    FindingCode.TOO_FEW_TOKENS: Words(
        "one more draft token would gain time",
        "raise num_speculative_tokens",
        "SpecDecodeBreakEven",
    ),
    FindingCode.LOAD: Words(
        "pays only at a lower load",
        "schedule draft tokens by batch size, or add pods",
        "SpecDecodeSlowerThanPlain",
    ),
    FindingCode.LONG_PROMPTS: Words(
        "long prompts accept less", "a draft trained on them, or pods without speculation", _PART
    ),
    FindingCode.STRUCTURED_OUTPUT: Words(
        "structured output accepts less", "pods without speculation, or with n-gram drafts", _PART
    ),
    FindingCode.ADAPTER: Words(
        "an adapter's requests accept less", "a draft for it, or pods without speculation", _PART
    ),
    FindingCode.SAMPLING: Words(
        "top-k, top-p or penalties accept less", "drop them, or pods without speculation", _PART
    ),
    FindingCode.ONE_ENGINE: Words(
        "one engine accepts less than the others",
        "drain and restart this vLLM",
        "SpecDecodeMixedWorkload",
    ),
    FindingCode.MISMATCH: Words(
        "almost nothing is accepted",
        "restart vLLM; check that the draft fits its target",
        "SpecDecodeAcceptanceCollapsed",
    ),
    FindingCode.NOT_SPECULATING: Words(
        "configured to draft, it drafts nothing",
        "find why in vLLM's log, restart it",
        "SpecDecodeNotSpeculating",
    ),
    FindingCode.PREFIX_CACHE: Words(
        "vLLM recomputes a block of each prefix hit",
        "try disable_eagle_block_drop",
        "SpecDecodeSlowerThanPlain",
    ),
    FindingCode.ROOM: Words(
        "the draft takes KV cache that requests need",
        "more GPU memory, or a smaller draft",
        "SpecDecodeKVCachePressure",
    ),
}

HELD: Final = f"{lately(series('finding'))} == 1"
_RUNBOOK: Final = f"{RUNBOOKS}/${{__data.fields.runbook}}.md"


def explained(expression: str) -> str:
    """Findings with the labels that ``columns`` shows.

    These are ``remedy``, which is in words as well, and the hidden ``runbook``.
    """
    expression = copied(expression, "remedy", "finding")
    for runbook in dict.fromkeys(words.runbook for words in FINDINGS.values()):
        codes = "|".join(code for code, words in FINDINGS.items() if words.runbook == runbook)
        expression = relabelled(expression, "runbook", runbook, "finding", codes)
    return expression


def columns(*, together: bool = False) -> list[Label]:
    """What a finding means and what to change, in two columns or ``together`` in one.

    The first column links to the runbook.
    """
    why = {str(code): words.why for code, words in FINDINGS.items()}
    remedy = {str(code): words.remedy for code, words in FINDINGS.items()}
    title, width = "Finding", 400

    if together:
        why = {code: f"{text}: {remedy[code]}" for code, text in why.items()}
        title, width = "Finding: what to change", 580

    return [
        Label("finding", _RUNBOOK, title=title, width=width, words=why),
        Label("remedy", title="What to change", words=remedy, hidden=together),
        Label("runbook", hidden=True),
    ]
