"""The rules of all findings, from the modules beside this one. Written by scripts/docs."""

from typing import Final

from sidecar.analysis.findings import (
    endings,
    greedy_drafting,
    groups,
    load,
    long_contexts,
    long_requests,
    mismatch,
    not_speculating,
    number_of_tokens,
    one_engine,
    prefix_cache,
    room,
    synthetic_acceptance,
)
from sidecar.analysis.findings.rule import FindingRule

RULES: Final[tuple[FindingRule, ...]] = (
    *endings.RULES,
    *greedy_drafting.RULES,
    *groups.RULES,
    *load.RULES,
    *long_contexts.RULES,
    *long_requests.RULES,
    *mismatch.RULES,
    *not_speculating.RULES,
    *number_of_tokens.RULES,
    *one_engine.RULES,
    *prefix_cache.RULES,
    *room.RULES,
    *synthetic_acceptance.RULES,
)
