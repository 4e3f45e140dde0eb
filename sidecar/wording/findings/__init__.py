"""What a finding means, what to change, what to expect of it, and how to verify it.

``docs/why.md`` says more.
"""

from collections.abc import Mapping
from typing import Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.report import ModelReport
from sidecar.wording.findings import cache, endings, faults, number_of_tokens, rates
from sidecar.wording.findings.explanation import AnyWords, Explanation

WORDS: Final[tuple[AnyWords, ...]] = (
    rates.GREEDY_DRAFTING,
    number_of_tokens.TOO_MANY_TOKENS,
    number_of_tokens.TOO_FEW_TOKENS,
    number_of_tokens.LOAD,
    number_of_tokens.LONG_CONTEXTS,
    rates.LONG_PROMPTS,
    rates.STRUCTURED_OUTPUT,
    rates.FORBIDDEN_DRAFTS,
    rates.ADAPTER,
    rates.SAMPLING,
    rates.ONE_ENGINE,
    faults.MISMATCH,
    faults.NOT_SPECULATING,
    endings.LOOPING,
    endings.EMPTY_REPLIES,
    cache.PREFIX_CACHE,
    cache.ROOM,
)
"""Those of every kind of finding."""

_BY_KIND: Final[Mapping[type[Finding], AnyWords]] = {words.kind: words for words in WORDS}


def explanations(model: ModelReport) -> list[Explanation]:
    """The model's findings in words, the most expensive first."""
    return [_BY_KIND[type(finding)].explain(finding, model) for finding in model.findings]
