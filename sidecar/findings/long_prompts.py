"""``long_prompts``: the longest prompts accept less than others otherwise alike."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.cached_prefix import cached_prefix_sentence
from sidecar.findings.explanation import Explanation, speculation_of
from sidecar.findings.group import RUNBOOK, accepting_less, advice_or_fact
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.long_requests import LONG_REQUESTS
from sidecar.findings.lower_acceptance import LowerAcceptance, both_rates
from sidecar.findings.one_engine import ONE_ENGINE
from sidecar.requests.keys import Table
from sidecar.settings.groups import Thresholds

_CODE: Final = "long_prompts"


def long_prompts(model: ModelReport, thresholds: Thresholds) -> Iterator[LowerAcceptance]:
    """The finding on each of the longest ranges of prompts that accept less."""
    lengths = [
        group
        for group in model.groups
        if group.by == Table.PROMPT_TOKENS and group.difference is not None
    ]
    # no longer prompts accept more
    longest = takewhile(lambda group: group.accepts_less, reversed(lengths[1:]))
    return accepting_less(_CODE, longest, model, thresholds)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _long_prompts(finding: LowerAcceptance, model: ModelReport) -> Explanation:
    tokens = speculation_of(model).draft_max_model_len
    longest = f" ({tokens:,} tokens)" if tokens else ""
    change = f"Use a draft that was trained on such lengths{longest}"

    return advice_or_fact(
        finding,
        model,
        what=(
            f"Requests with prompts of {finding.group} tokens accept {both_rates(finding)} with"
            " other prompt lengths that are otherwise alike."
        ),
        change=f"{cached_prefix_sentence(model)} {change}".strip(),
        expect="Heads and small drafts accept less beyond the lengths that they were trained on.",
    )


LONG_PROMPTS: Final = FindingKind(
    code=_CODE,
    gate=long_prompts,
    place=Place.PART,
    unless=(ONE_ENGINE, LONG_REQUESTS),
    of_requests=True,
    explain=_long_prompts,
    why="long prompts accept less",
    remedy="a draft trained on them",
    runbook=RUNBOOK,
)
