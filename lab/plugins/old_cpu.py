"""A plug-in for vLLM 0.12 to 0.26 on a CPU: lets these builds speculate with n-gram.

It drops the CPU model runner's assertion against speculation, gives the rejection sampler kernels
in plain torch, and mends what structured output needs there. Scheduler, engine core and API server
stay vLLM's own.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch


class _Kernel:
    """Stands for a Triton kernel, which is called as ``kernel[grid](...)``."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._function

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self._function(*arguments, **named)


def register() -> None:
    """The entry point."""
    _replace_kernels()
    _allow_speculation()
    _mend_structured_output()


def _replace_kernels() -> None:
    sampler = import_module("vllm.v1.sample.rejection_sampler")
    modules = [sampler]
    with suppress(ImportError):
        modules.append(import_module("vllm.utils.cpu_triton_utils"))

    kernels: dict[str, Callable[..., None]] = {
        "rejection_greedy_sample_kernel": _sample_greedy,
        "rejection_random_sample_kernel": _sample_random,
        "expand_kernel": _expand,
        "sample_recovered_tokens_kernel": _recovery(inverted="inv_q" in inspect.getsource(sampler)),
    }
    for module in modules:
        for name, function in kernels.items():
            if hasattr(module, name):
                setattr(module, name, _Kernel(function))

    if not hasattr(getattr(sampler, "triton", None), "next_power_of_2"):
        vars(sampler)["triton"] = _Triton


class _Triton:
    """What the sampler calls of Triton itself."""

    @staticmethod
    def next_power_of_2(number: int) -> int:
        return 1 << (number - 1).bit_length()


def _allow_speculation() -> None:
    """Compiles the CPU model runner's constructor again, without its assertion."""
    runner = import_module("vllm.v1.worker.cpu_model_runner")
    source = textwrap.dedent(inspect.getsource(runner.CPUModelRunner.__init__))
    if "spec decode is not supported" not in source:
        return
    source = re.sub(r"\n\s*assert self\.speculative_config is None[^\n]*", "", source)
    source = source.replace("super().__init__", "super(CPUModelRunner, self).__init__")
    names: dict[str, Any] = {}
    exec(source, runner.__dict__, names)  # noqa: S102 - vLLM's own source
    runner.CPUModelRunner.__init__ = names["__init__"]


def _mend_structured_output() -> None:
    """Lets 0.12 and 0.14 apply a grammar's bit mask without CUDA.

    Both pin its index tensor, for which they need CUDA; 0.12 needs float32, too.
    """
    make_tensor = torch.tensor
    xgrammar = import_module("xgrammar")
    apply = xgrammar.apply_token_bitmask_inplace

    def tensor(*arguments: Any, **named: Any) -> torch.Tensor:
        named.pop("pin_memory", None)
        return make_tensor(*arguments, **named)

    def apply_bitmask(
        logits: Any, bitmask: Any, *arguments: Any, indices: Any = None, **named: Any
    ) -> None:
        listed = indices.tolist() if isinstance(indices, torch.Tensor) else indices
        # itself if it is float32, the only type that the CPU's kernel takes
        scores = logits.float()
        apply(scores, bitmask, *arguments, indices=listed, **named)
        logits.copy_(scores)

    vars(torch)["tensor"] = tensor
    vars(xgrammar)["apply_token_bitmask_inplace"] = apply_bitmask


# vLLM's kernels, with its order of arguments; ``ends`` says where each request's draft tokens end.


def _spans(ends: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """(request, begin, end) of each request's draft tokens."""
    begin = 0
    for request, end in enumerate(ends.tolist()):
        yield request, begin, end
        begin = end


def _sample_greedy(
    out: Any,
    ends: Any,
    draft: Any,
    argmax: Any,
    bonus: Any,
    is_greedy: Any,
    max_length: Any,
    *_: Any,
    **__: Any,
) -> None:
    for request, begin, end in _spans(ends):
        if is_greedy is not None and not bool(is_greedy[request]):
            continue
        for position, at in enumerate(range(begin, end)):
            out[request, position] = int(argmax[at])
            if int(draft[at]) != int(argmax[at]):
                break
        else:
            out[request, end - begin] = int(bonus.reshape(-1)[request])


def _sample_random(
    out: Any,
    ends: Any,
    draft: Any,
    draft_probabilities: Any,
    target_probabilities: Any,
    bonus: Any,
    recovered: Any,
    uniform: Any,
    is_greedy: Any,
    *_: Any,
    **__: Any,
) -> None:
    for request, begin, end in _spans(ends):
        if bool(is_greedy[request]):
            continue
        for position, at in enumerate(range(begin, end)):
            token = int(draft[at])
            drafted = 1.0 if draft_probabilities is None else float(draft_probabilities[at, token])
            if not (
                drafted > 0
                and float(target_probabilities[at, token]) / drafted >= float(uniform[at])
            ):
                out[request, position] = int(recovered[at])
                break
            out[request, position] = token
        else:
            out[request, end - begin] = int(bonus.reshape(-1)[request])


def _expand(
    out: Any, values: Any, ends: Any, replace_from: Any, replace_to: Any, *_: Any, **__: Any
) -> None:
    for request, begin, end in _spans(ends):
        value = values[request]
        out[begin:end] = replace_to if float(value) == replace_from else value


def _recovery(*, inverted: bool) -> Callable[..., None]:
    """The kernel that samples in place of a rejected token.

    ``inverted``: it gets 1 / q instead of q.
    """

    def sample(
        out: Any,
        ends: Any,
        draft: Any,
        draft_probabilities: Any,
        target: Any,
        q: Any,
        vocabulary: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        for request, begin, end in _spans(ends):
            for at in range(begin, end):
                left = target[at].clone()
                if draft_probabilities is None:
                    left[int(draft[at])] = 0
                else:
                    left = (left - draft_probabilities[at]).clamp(min=0)
                out[at] = int((left * q[request] if inverted else left / q[request]).argmax())

    return sample
