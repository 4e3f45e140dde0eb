"""``plan``: does a draft fit beside its target, and how much KV cache does it cost? Contacts no server.

A GB is 10^9 bytes. Weights are parameters times bytes, without activations, CUDA graphs and quantization scales.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Final, Literal

from sidecar.commands.arguments import number_up_to, whole
from sidecar.engine.methods import LOGIT_BYTES
from sidecar.settings import Settings
from sidecar.wording.numbers import aligned, count

HELP = "calculate whether a draft model fits in memory next to its target, and how much KV cache it costs"
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([bm]?)", re.ASCII | re.IGNORECASE)
_SHAPE: Final = re.compile(r"(\d{1,4})x(\d{1,4})x(\d{1,7})", re.ASCII | re.IGNORECASE)
_MOST_BILLIONS: Final = 100_000.0
_MOST_GPUS: Final = 4096
_GPU_GB: Final = {  # from the data sheets
    **dict.fromkeys(("a10", "a30", "l4", "rtx4090"), 24.0),
    "rtx5090": 32.0,
    "a100-40": 40.0,
    **dict.fromkeys(("a40", "l40s"), 48.0),
    **dict.fromkeys(("a100-80", "h100"), 80.0),
    "mi250": 128.0,
    "h200": 141.0,
    "b200": 180.0,
    "mi300x": 192.0,
    "mi325x": 256.0,
}
# Per parameter or cached value, without quantization scales and zero points.
_BYTES: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
_METHODS: Final = (  # those without a draft model: name, what they need, and what they suit
    # The head's sizes are those of SpecForge's layout at the dimensions of Llama 3.1.
    ("eagle3", "a head trained for this target: 0.4B for 8B, 1.4B for 70B", "chat and code at low to medium load"),
    ("mtp", "a target with MTP layers of its own", "DeepSeek, GLM, MiMo, Qwen3-Next and similar"),
    ("ngram", "nothing", "output that repeats its prompt: code edits, extraction, summaries"),
    ("suffix", "a Python package, and host memory", "output that repeats earlier ones: agents, templates"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``plan``."""
    size = "parameters, such as 70b or 500m"
    parser.add_argument("--target", type=_billions, metavar="SIZE", required=True, help=size)
    without = f"{size}; without --draft, plan lists the methods that need no draft model"
    parser.add_argument("--draft", type=_billions, metavar="SIZE", help=without)
    for name in ("target", "draft", "kv"):
        precision = f"{', '.join(_BYTES)} (default: bf16)"
        parser.add_argument(f"--{name}-precision", choices=tuple(_BYTES), default="bf16", metavar="P", help=precision)
    gpu = parser.add_mutually_exclusive_group(required=True)
    gpu.add_argument("--gpu", choices=tuple(_GPU_GB), metavar="NAME", help=f"one of {', '.join(_GPU_GB)}")
    memory, share = number_up_to(1e5, "gigabytes, such as 80"), number_up_to(1.0, "a share above 0 and at most 1")
    gpu.add_argument("--gpu-memory", type=memory, metavar="GB", help="memory of each GPU, 10^9 bytes")
    gpus = "GPUs that share both models (default: 1)"
    parser.add_argument("--gpus", type=whole(_MOST_GPUS), default=1, metavar="N", help=gpus)
    used = "vLLM's --gpu-memory-utilization (default: 0.9)"
    parser.add_argument("--utilization", type=share, default=0.9, metavar="SHARE", help=used)
    shape = "layers x KV heads x head size, such as 80x8x128, to count in tokens"
    parser.add_argument("--kv", type=_cached_values, metavar="SHAPE", help=f"the target's {shape}")
    parser.add_argument("--draft-kv", type=_cached_values, metavar="SHAPE", help=f"the draft's {shape}")
    logits = (
        "with draft_sample_method probabilistic, max_num_seqs x K x vocabulary, such as 256x3x128256, to count the "
        "draft's logits"
    )
    parser.add_argument("--draft-logits", type=_product, default=0, metavar="SHAPE", help=logits)
    parser.add_argument("--context", type=whole(10**18), metavar="TOKENS", help="also count requests of this length")


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Prints a plan; returns 0, or 1 if it is impossible."""
    size = _BYTES[arguments.kv_precision]
    target_kv, draft_kv = (None if kv is None else kv * size for kv in (arguments.kv, arguments.draft_kv))
    deployment = Deployment(
        target=Model(arguments.target, arguments.target_precision, target_kv),
        draft=None if arguments.draft is None else Model(arguments.draft, arguments.draft_precision, draft_kv),
        gpus=arguments.gpus,
        gpu_gb=arguments.gpu_memory or _GPU_GB[arguments.gpu],
        utilization=arguments.utilization,
        logits_gb=arguments.draft_logits * LOGIT_BYTES / 1e9,
    )
    print("\n".join(_text(deployment, arguments.context)))
    return 0 if deployment.fits else 1


def _billions(text: str) -> float:
    """Parses ``70``, ``70b`` or ``500m`` into billions of parameters."""
    match = _SIZE.fullmatch(text.strip())
    value = float(match[1]) / (1000 if match[2] in {"m", "M"} else 1) if match else 0.0
    if not 0 < value <= _MOST_BILLIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters such as 70b or 500m")
    return value


def _product(text: str, expected: str = "max_num_seqs x K x vocabulary, such as 256x3x128256") -> int:
    """The product of three numbers with an ``x`` between them."""
    match = _SHAPE.fullmatch(text.strip())
    product = prod(map(int, match.groups())) if match else 0
    if not product:
        raise argparse.ArgumentTypeError(f"expected {expected}")
    return product


def _cached_values(text: str) -> int:
    """Cached values per token of context for a shape; keys and values both count."""
    return 2 * _product(text, "layers x KV heads x head size, such as 80x8x128")


@dataclass(frozen=True, slots=True)
class Model:
    """A model of ``billions`` of parameters; ``kv_bytes`` per token of context, over all GPUs, None if unknown."""

    billions: float
    precision: str
    kv_bytes: float | None = None

    @property
    def weights_gb(self) -> float:
        """The weights' size."""
        return self.billions * _BYTES[self.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Both models spread over ``gpus`` of ``gpu_gb`` each, as in vLLM, which may use the share ``utilization``.

    ``logits_gb`` is what the draft's logits take on each GPU if the draft samples its tokens.
    """

    target: Model
    draft: Model | None
    gpus: int
    gpu_gb: float
    utilization: float
    logits_gb: float = 0.0

    @property
    def memory_gb(self) -> float:
        """The memory of all GPUs, not only vLLM's part."""
        return self.gpus * self.gpu_gb

    @property
    def weights_gb(self) -> float:
        """The size of both models' weights."""
        return self.target.weights_gb + (self.draft.weights_gb if self.draft else 0.0)

    @property
    def kv_gb(self) -> float:
        """What vLLM may use for the KV cache; at 0 or below, the models do not fit."""
        return self.memory_gb * self.utilization - self.weights_gb - self.gpus * self.logits_gb

    @property
    def fits(self) -> bool:
        """Whether anything is left for the KV cache."""
        return self.kv_gb > 0

    @property
    def kv_tokens(self) -> float | None:
        """The tokens in the KV cache; the draft's own keys and values, if known, add to the bytes of each."""
        if self.target.kv_bytes is None:
            return None
        draft_bytes = self.draft.kv_bytes or 0.0 if self.draft else 0.0
        return max(self.kv_gb, 0.0) * 1e9 / (self.target.kv_bytes + draft_bytes)


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """A rule of thumb: the value and what is wanted, both as shown, and what to do if the rule is broken."""

    name: str
    value: str
    wanted: str
    met: bool
    remedy: str


def verdict(deployment: Deployment, rules: list[RuleOfThumb]) -> Literal["good", "doubtful", "impossible"]:
    """The verdict that follows from the memory and the rules."""
    if not deployment.fits:
        return "impossible"
    return "good" if all(rule.met for rule in rules) else "doubtful"


def checked_rules(deployment: Deployment) -> Iterator[RuleOfThumb]:
    """The rules of thumb for memory and pairing; shares are of all memory."""
    target, draft = deployment.target, deployment.draft
    remedy = "the weights leave no room for a KV cache at this utilization: quantize them or add GPUs"
    yield RuleOfThumb("room for a KV cache", _gb(deployment.kv_gb), "above 0", deployment.fits, remedy)
    share = target.weights_gb / deployment.memory_gb
    remedy = f"the target takes {share:.0%} of the memory: quantize it before you add a draft, or add GPUs"
    yield RuleOfThumb("target's share of memory", f"{share:.1%}", "at most 70%", share <= 0.70, remedy)
    if draft is None:
        return
    share = draft.weights_gb / deployment.memory_gb
    remedy = f"the draft takes {share:.0%} of the memory: quantize it or use a smaller one"
    yield RuleOfThumb("draft's share of memory", f"{share:.1%}", "at most 15%", share <= 0.15, remedy)
    ratio = target.billions / draft.billions
    if ratio < 8:
        remedy = "is large, so drafting takes long: use one that is 1/8 to 1/12 of the target's size"
    else:
        remedy = "is small, so its acceptance rate may be low: measure it with `specdec-sidecar sweep`"
    remedy = f"the draft (1:{ratio:.1f}) {remedy}"
    yield RuleOfThumb("draft to target", f"1:{ratio:.1f}", "8 to 12", 8 <= ratio <= 12, remedy)


def remarks(target: Model, draft: Model | None) -> Iterator[str]:
    """The caveats of the numbers and the rules."""
    if target.kv_bytes is None:
        yield "to count the cache in tokens, set --kv: layers x KV heads x head size, as in the model's config.json"
    elif draft is not None and draft.kv_bytes is None:
        yield "the token count is without the draft's own keys and values: set --draft-kv"
    if draft is None:
        return
    yield (
        "make sure that both models have the same tokenizer: vLLM compares only the vocabulary sizes, and if the same "
        "id means different tokens, nothing is accepted"
    )
    yield (
        "1:8 to 1:12 is for draft models, not for EAGLE or MTP heads; vLLM's own benchmark used 1:140 and won at low "
        "load. A smaller draft costs less, but has a lower acceptance rate: measure to find out which is better"
    )
    # Decoding at light load is bound by reading the weights. With K tokens a step takes as long as 1 + c K plain ones,
    # so the acceptance rate (1 + c K - 1) / K = c breaks even.
    cost = draft.weights_gb / target.weights_gb
    yield (
        f"at light load a draft token takes about {cost:.2g} of a target step, so K tokens break even at a length "
        f"of 1 + {cost:.2g} K, an acceptance rate of {cost:.0%}. Load raises that: it is a lower bound, not a forecast"
    )
    if _BYTES[target.precision] < _BYTES[draft.precision]:
        yield (
            f"the target is at {target.precision} and the draft at {draft.precision}: quantize the draft first, as its "
            "errors cost acceptance but never quality, or use one precision for both"
        )


def _text(deployment: Deployment, context: int | None) -> Iterator[str]:
    """The memory, the cache, the rules, the methods, the caveats, and the verdict.

    ``context`` is the length of the requests to count, if any.
    """
    rules = list(checked_rules(deployment))
    yield from _weights(deployment)
    yield ""
    yield from _cache(deployment, context)
    yield ""
    rows = [(rule.name, rule.value, rule.wanted, "yes" if rule.met else "NO") for rule in rules]
    yield from aligned(("rule of thumb", "found", "wanted", "met"), rows)
    if deployment.draft is None:
        yield ""
        yield "methods without a draft model:"
        yield from (f"  {line}" for line in aligned(("method", "needs", "suits"), _METHODS, left=range(3)))
    notes = [f"note: {remark}" for remark in remarks(deployment.target, deployment.draft)]
    yield from ("", *notes) if notes else ()
    yield ""
    yield f"verdict: {verdict(deployment, rules)}"
    yield from (f"  {rule.remedy}" for rule in rules if not rule.met)


def _weights(deployment: Deployment) -> Iterator[str]:
    rows = [("memory", deployment.memory_gb, f"{deployment.gpus} x {deployment.gpu_gb:g} GB")]
    for name, model in (("target", deployment.target), ("draft", deployment.draft)):
        if model is not None:
            rows.append((name, model.weights_gb, f"{model.billions:.4g}B {model.precision}"))
    left = deployment.memory_gb - deployment.weights_gb
    rows += [("weights", deployment.weights_gb, ""), ("left", left, "all memory minus the weights")]
    if deployment.logits_gb:
        share = deployment.logits_gb / deployment.gpu_gb
        text = f"of the draft, on each GPU; on model runner V1, lower --gpu-memory-utilization by {share:.3f}"
        rows.append(("logits", deployment.logits_gb, text))
    yield from (f"{name:<8}{_gb(size):>12}  {note}".rstrip() for name, size, note in rows)


def _cache(deployment: Deployment, context: int | None) -> list[str]:
    """A table of what is left for the KV cache; with a draft, also without it, and the difference."""
    columns: tuple[str, ...] = ("",)
    options = [deployment]
    if deployment.draft is not None:
        columns = ("with the draft", "without it", "lost")
        options.append(replace(deployment, draft=None, logits_gb=0.0))

    def row(name: str, values: list[float], show: Callable[[float], str]) -> tuple[str, ...]:
        lost = [values[1] - values[0]] if len(values) == 2 else []
        return (name, *map(show, (*values, *lost)))

    rows = [row("KV cache", [option.kv_gb for option in options], _gb)]
    tokens = [option.kv_tokens for option in options if option.kv_tokens is not None]
    if tokens:
        rows.append(row("KV tokens", tokens, count))
    if tokens and context is not None:
        rows.append(row(f"requests of {context:,} tokens", [total // context for total in tokens], count))
    return aligned((f"at a utilization of {deployment.utilization:g}", *columns), rows)


def _gb(value: float) -> str:
    return f"{value:,.1f} GB"
