"""What the prefix cache may do to drafts: a sentence that several findings share."""

from typing import Final

from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.report import ModelReport
from sidecar.engine.methods import drafts_from_target_states
from sidecar.findings.explanation import speculating_engine
from sidecar.wording.numbers import percent

_MATTERS: Final = 0.05  # share of the prompt tokens that is found, from which on it matters


def cached_prefix_sentence(model: ModelReport) -> str:
    """What to try first where drafts may be wrong behind cached prefixes; empty elsewhere.

    The draft's context is made of the target's hidden states, and what the prefix cache restores
    has none (vLLM issue 47930 and pull request 47926: 0.3 to 0.8 % accepted at a shared prefix of
    20,000 tokens, 38 % once these tokens were hidden from the draft).
    """
    engine = speculating_engine(model)
    found = sum_caches(engine.cache for engine in model.engines).hit_ratio or 0.0
    method = engine.speculation.method if engine.speculation is not None else None
    if not drafts_from_target_states(method) or found < _MATTERS:
        return ""

    return (
        f"First try `--no-enable-prefix-caching` on one pod: {percent(found)} of the prompt tokens"
        f" come from the prefix cache, and behind those {method} may draft wrongly (vLLM issue"
        " 47930)."
    )
