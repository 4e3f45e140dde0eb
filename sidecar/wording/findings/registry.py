"""The words of all findings, from the modules beside this one. Written by scripts/docs."""

from typing import Final

from sidecar.wording.findings import (
    cache,
    endings,
    faults,
    number_of_tokens,
    rates,
)
from sidecar.wording.findings.explanation import AnyWords

WORDS: Final[tuple[AnyWords, ...]] = (
    *cache.WORDS,
    *endings.WORDS,
    *faults.WORDS,
    *number_of_tokens.WORDS,
    *rates.WORDS,
)
