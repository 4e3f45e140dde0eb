"""A plug-in for vLLM 0.27 and later on a CPU.

With it, vLLM's rejection sampler sees each request's own temperature.

Without Triton, vLLM expands values from requests to draft tokens with a kernel that casts
temperatures to integers, so every sampled request runs at a wrong one. This registers a kernel that
keeps their type. Builds for GPUs do not have the fault, and nothing else of vLLM changes.
"""

from typing import Any

import torch


def register() -> None:
    """The entry point: replaces the kernel, which vLLM puts into its sampler a little later."""
    # vLLM's other processes need not load it.
    import vllm.utils.cpu_triton_utils as kernels  # noqa: PLC0415 - see above

    kernels._expand_kernel_impl = expand  # noqa: SLF001 - vLLM has no other way
    # older releases, such as 0.27.1, take it from there
    if wrapper := getattr(kernels, "expand_kernel", None):
        wrapper.func = expand


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    draft_ends: torch.Tensor,
    replace_from: Any,
    replace_to: Any,
    MAX_NUM_TOKENS: int | None = None,  # noqa: N803 - vLLM's name
) -> None:
    """Writes each request's value once for each of its draft tokens.

    ``draft_ends`` are where these end.
    """
    counts = torch.diff(draft_ends.to(torch.int64), prepend=torch.zeros(1, dtype=torch.int64))
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(torch.repeat_interleave(replaced, counts)[: output.shape[0]].to(output.dtype))
