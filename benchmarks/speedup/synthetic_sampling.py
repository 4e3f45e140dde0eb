"""A vLLM plug-in: vLLM's synthetic rejection sampler on a CPU.

vLLM 0.32 has ``rejection_sample_method: synthetic`` only for GPUs; on a CPU each step fails with "Synthetic acceptance
not supported with CPU sampling". This applies the same rule: a draft token is accepted if a uniform random number is
below the rate of its position.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any


def register() -> None:
    """The entry point in the group ``vllm.general_plugins``."""
    kernels = import_module("vllm.utils.cpu_triton_utils")
    for name, instead, greedy in (
        ("_rejection_greedy_sample_kernel_impl", "target_argmax", True),
        ("_rejection_random_sample_kernel_impl", "recovered_token_ids", False),
    ):
        setattr(kernels, name, _with_synthetic(getattr(kernels, name), instead, greedy=greedy))


def _with_synthetic(original: Callable[..., None], instead: str, *, greedy: bool) -> Callable[..., None]:
    """``original`` with a synthetic mode; ``instead`` names the tokens that replace rejected ones."""
    signature = inspect.signature(original)

    def kernel(*given: Any, **named: Any) -> None:
        call = signature.bind(*given, **named).arguments
        if call.get("SYNTHETIC_MODE"):
            _sample(call, call[instead], greedy=greedy)
        else:
            original(*given, **named)

    return kernel


def _sample(call: dict[str, Any], instead: Any, *, greedy: bool) -> None:
    """Writes the tokens of all (non-)greedy requests: accepted drafts, then a replacement or the bonus token."""
    out, drafts = call["output_token_ids"], call["draft_token_ids"]
    below = call["uniform_probs"]
    is_greedy = [True] * len(out) if call["is_greedy"] is None else call["is_greedy"].tolist()
    start = 0
    for request, end in enumerate(call["cu_num_draft_tokens"].tolist()):
        if is_greedy[request] is greedy:
            for position, at in enumerate(range(start, end)):
                accepted = bool(below[at] < call["synthetic_conditional_rates"][position]) and int(drafts[at]) >= 0
                out[request, position] = drafts[at] if accepted else instead[at]
                if not accepted:
                    break
            else:
                out[request, end - start] = call["bonus_token_ids"][request].item()
        start = end
