"""What vLLM and transformers assume about a family of models if its configuration does not say it.

Source: vLLM 0.32, the classes in model_executor/models, and model_executor/models/config.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is assumed about a family.

    ``attention_interval`` n: every n-th layer has attention, the others keep a state.
    ``has_attention_and_state``: each layer has both. ``full_interval`` n: every n-th layer attends
    to all tokens, the others have a window. ``state_dtype`` is that of a state's recurrence, which
    the configuration may override; None if vLLM does not look it up there. ``scales_context``: a
    RoPE factor extends the longest context.
    """

    gates_attention: bool = False
    attention_interval: int | None = None
    has_attention_and_state: bool = False
    full_interval: int | None = None
    state_dtype: str | None = None
    shared_experts: int = 0
    mtp_layers: int = 0
    scales_context: bool = True


# By the beginning of ``model_type``.
_FAMILIES: Final[Mapping[str, Family]] = {
    "exaone4_5": Family(mtp_layers=1),
    "exaone_moe": Family(mtp_layers=1),
    "falcon_h1": Family(has_attention_and_state=True),
    "gemma2": Family(full_interval=2),
    "gemma3": Family(scales_context=False),
    "llama4": Family(shared_experts=1),
    "longcat_flash": Family(mtp_layers=1),
    "nemotron_h": Family(state_dtype="float32"),
    "qwen3_5": Family(
        gates_attention=True, attention_interval=4, mtp_layers=1, state_dtype="bfloat16"
    ),
    "qwen3_next": Family(gates_attention=True, attention_interval=4, mtp_layers=1),
}
_OTHER: Final = Family()


def family_of(model_type: str | None) -> Family:
    """What is assumed about models of this type."""
    named = model_type or ""
    return next((one for name, one in _FAMILIES.items() if named.startswith(name)), _OTHER)
