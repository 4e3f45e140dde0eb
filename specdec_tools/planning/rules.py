"""Rules of thumb for a pair of models, each with its source, and what follows for the reader."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sidecar.sizes.precision import BYTES
from specdec_tools.planning.memory import Deployment, Room
from specdec_tools.planning.serving import KV_CACHE_DTYPES, Serving
from specdec_tools.planning.shape import ModelShape

PlanVerdict = Literal["good", "doubtful", "impossible"]
_LARGEST_TARGET: Final = 0.70  # of all memory
_LARGEST_DRAFT: Final = 0.15
_RATIOS: Final = (8, 12)
_LARGEST_LOSS: Final = 1 / 3  # of the tokens that the KV cache holds
_GUIDE: Final = "deployment guides, not measured here"
_VLLM: Final = "vLLM refuses to start otherwise"
_OWN: Final = "our own threshold, not measured"
_ARITHMETIC: Final = "arithmetic"
_VERIFICATION: Final = "drafts are compared by token id"
_RUNNER_V1: Final = "vLLM's model runner V1"
_LATENT_PRECISIONS: Final = frozenset({"bf16", "fp16", "fp8"})


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """What was found, what is wanted, and who says so; ``remedy`` if the rule is broken."""

    name: str
    found: str
    wanted: str
    source: str
    met: bool
    remedy: str

    @property
    def is_refusal(self) -> bool:
        """Whether vLLM does not start because of it."""
        return not self.met and self.source in {_VLLM, _ARITHMETIC}


def plan_verdict(rules: Sequence[RuleOfThumb]) -> PlanVerdict:
    """The verdict that follows from the rules."""
    if any(rule.is_refusal for rule in rules):
        return "impossible"
    return "good" if all(rule.met for rule in rules) else "doubtful"


def checked_rules(
    deployment: Deployment, serving: Serving, room: Room, plain: Room | None
) -> Iterator[RuleOfThumb]:
    """What vLLM wants, and rules of thumb for memory and for a draft model's pairing.

    Shares are of all memory. ``plain`` is the room without speculation, None if it takes none.
    """
    yield _cache_rule(room)
    yield from _dimensions(deployment, serving)
    share = deployment.target.weights_gb / deployment.memory_gb
    yield RuleOfThumb(
        "target's share of memory",
        f"{share:.1%}",
        f"at most {_LARGEST_TARGET:.0%}",
        _GUIDE,
        share <= _LARGEST_TARGET,
        f"the target takes {share:.0%} of the memory: quantize it before you add a draft, or add"
        " GPUs",
    )
    draft = deployment.draft
    if draft is not None:
        yield from _draft_context(draft, serving)
        share = deployment.draft_gb / deployment.memory_gb
        yield RuleOfThumb(
            "draft's share of memory",
            f"{share:.1%}",
            f"at most {_LARGEST_DRAFT:.0%}",
            _GUIDE,
            share <= _LARGEST_DRAFT,
            f"the draft takes {share:.0%} of the memory: quantize it or use a smaller one",
        )
    if plain is not None:
        yield from _loss(room, plain)
    if draft is not None and serving.method == "draft_model":
        yield from _ratio(deployment.target, draft)
        yield from _alike(deployment.target, draft)


def _cache_rule(room: Room) -> RuleOfThumb:
    """Whether the KV cache holds a request of the whole context, where its size is known."""
    wanted = f"above {room.least_gb:g} GB"
    source = _ARITHMETIC
    if room.request_gb is not None:
        wanted = f"{room.request_gb:,.2f} GB for a request"
        source = _VLLM

    remedy = "weights, overhead and the draft's logits leave no room for a KV cache"
    if 0 < room.gb <= room.least_gb:
        remedy = "activations and CUDA graphs, which are not counted, often take what is left"
    elif room.gb > 0:
        remedy = "one request of the whole context does not fit into the KV cache"

    return RuleOfThumb(
        "room for a KV cache", f"{room.gb:,.2f} GB", wanted, source, room.fits, remedy
    )


def _dimensions(deployment: Deployment, serving: Serving) -> Iterator[RuleOfThumb]:
    """The context and the GPUs that the models' own dimensions allow, where these are known."""
    longest = deployment.target.longest_context
    if longest is not None:
        yield RuleOfThumb(
            "context",
            f"{serving.context:,} tokens",
            f"at most {longest:,}",
            _VLLM,
            serving.context <= longest,
            f"vLLM refuses a context above the target's {longest:,} tokens: use --context {longest}"
            " or less",
        )

    yield from _latent_cache(deployment)
    splits = [("target", deployment.target, deployment.gpus)]
    if deployment.draft is not None and serving.method != "mtp":
        splits.append(("draft", deployment.draft, deployment.draft_parallel))
    for part, model, gpus in splits:
        if model.heads is not None and gpus > 1:
            yield RuleOfThumb(
                f"{part}'s attention heads",
                f"{model.heads} on {gpus} GPUs",
                "the same on each",
                _VLLM,
                model.can_be_split(gpus),
                f"vLLM cannot split the {part}'s {model.heads} attention heads over {gpus} GPUs:"
                f" use a number of GPUs that divides {model.heads}",
            )


def _latent_cache(deployment: Deployment) -> Iterator[RuleOfThumb]:
    """Which precisions vLLM has for the cache of MLA, where a model has it.

    Sources, of vLLM 0.32: ``supported_kv_cache_dtypes`` of v1/attention/backends/mla, and
    ``validate_nvfp4_kv_cache_with_mla`` in config/vllm.py.
    """
    models = (deployment.target, deployment.draft)
    if not any(model.has_latent_cache for model in models if model is not None):
        return

    precision = deployment.cache.precision
    yield RuleOfThumb(
        "precision of MLA's cache",
        precision,
        "bf16, fp16 or fp8",
        _VLLM,
        precision in _LATENT_PRECISIONS,
        f"vLLM has no {precision} for the cache of multi-head latent attention (MLA):"
        " use --kv-precision fp8 or bf16",
    )


def _draft_context(draft: ModelShape, serving: Serving) -> Iterator[RuleOfThumb]:
    """Whether requests may outgrow what the draft was made for, where that is known.

    Sources, of vLLM 0.32: ``_input_fits_in_drafter`` in v1/worker/gpu_model_runner.py, and
    ``_maybe_override_draft_max_position_embeddings`` in config/speculative.py.
    """
    longest = draft.longest_context
    if longest is None or serving.method == "mtp":
        return

    yield RuleOfThumb(
        "draft's longest context",
        f"{longest:,} tokens",
        f"at least {serving.context:,}",
        _RUNNER_V1,
        longest >= serving.context,
        f"the draft is made for {longest:,} tokens: while one request of a batch is longer, model"
        " runner V1 drafts for none of them, and V2 drafts, but beyond what the draft was trained"
        f" for: use another draft or --context {longest}, or measure with requests that long",
    )


def _loss(room: Room, plain: Room) -> Iterator[RuleOfThumb]:
    """Whether speculation leaves enough of the KV cache, where its tokens are known.

    With a full cache throughput is in proportion to what fits, so that a loss of a third takes a
    speedup of 1.5 to serve as many requests as before.
    """
    if not room.tokens or not plain.tokens:
        return

    loss = 1 - room.tokens / plain.tokens
    speedup = plain.tokens / room.tokens
    remedy = "use a smaller or quantized draft, or a head"
    if room.bytes_per_sequence:
        remedy = "use fewer draft tokens, each of which keeps a state of its own"
    yield RuleOfThumb(
        "KV tokens lost to speculation",
        f"{loss:.1%}",
        f"at most {_LARGEST_LOSS:.0%}",
        _OWN,
        loss <= _LARGEST_LOSS,
        f"speculation costs {loss:.0%} of the KV tokens ({plain.requests} requests of the whole"
        f" context become {room.requests}): once the cache is full, only a speedup of"
        f" {speedup:.2g} serves as many; {remedy}",
    )


def _ratio(target: ModelShape, draft: ModelShape) -> Iterator[RuleOfThumb]:
    """How much smaller the draft is, by the parameters that a token passes, if these are known."""
    if target.active_billions is None or draft.active_billions is None:
        return

    least, most = _RATIOS
    ratio = target.active_billions / draft.active_billions
    of_what = ""
    whole = "the target"
    if target.is_moe or draft.is_moe:
        of_what = " of active parameters"
        whole = "the target's active parameters"

    advice = "is small, so its acceptance rate may be low: measure it with `specdec-sidecar sweep`"
    if ratio < least:
        advice = f"is large, so drafting takes long: use one of 1/{least} to 1/{most} of {whole}"

    yield RuleOfThumb(
        "draft to target",
        f"1:{ratio:.1f}",
        f"1:{least} to 1:{most}",
        _GUIDE,
        least <= ratio <= most,
        f"the draft (1:{ratio:.1f}{of_what}) {advice}",
    )


def _alike(target: ModelShape, draft: ModelShape) -> Iterator[RuleOfThumb]:
    """Whether family, vocabulary and tokenizer are the same; nothing where they are unknown."""
    if target.family is not None and draft.family is not None:
        yield RuleOfThumb(
            "family",
            f"{target.family}, {draft.family}",
            "the same",
            _GUIDE,
            _base(target.family) == _base(draft.family),
            "the models are of different families, which often accept less of each other's tokens",
        )
    if target.vocabulary is not None and draft.vocabulary is not None:
        yield RuleOfThumb(
            "vocabulary",
            f"{target.vocabulary:,}, {draft.vocabulary:,}",
            "the same",
            _VLLM,
            target.vocabulary == draft.vocabulary,
            "vLLM refuses a draft model whose vocabulary has another size: use one with that of the"
            ' target, or add "use_heterogeneous_vocab": true to vLLM\'s speculative config',
        )

    if target.tokenizer is not None and draft.tokenizer is not None:
        same = target.tokenizer == draft.tokenizer
        yield RuleOfThumb(
            "tokenizer",
            "the same" if same else "different",
            "the same",
            _VERIFICATION,
            same,
            "the same id means different tokens: almost nothing would be accepted",
        )


def _base(family: str) -> str:
    """A family without its mixtures of experts, whose dense models are of the same: qwen3_moe."""
    return family.removesuffix("_text").removesuffix("_moe")


def remarks(deployment: Deployment, serving: Serving) -> Iterator[str]:
    """The caveats of the numbers and the rules."""
    target = deployment.target
    draft = deployment.draft
    yield from _memory_remarks(deployment)

    unchecked = (
        f"whether one request of {serving.context:,} tokens fits is not checked, and the line may "
        "not start"
    )
    if not target.layers:
        yield f"{unchecked}: set --kv, or name the target's config.json"
    elif draft is not None and not draft.layers:
        yield (
            "the draft's own keys and values are unknown, so no tokens are counted: "
            f"{unchecked}: set --draft-kv, or name the draft's config.json"
        )

    yield from _cache_remarks(deployment)
    yield from _file_remarks("target", target)
    yield from target.notes
    if draft is None:
        return

    if serving.method != "mtp":
        yield from _file_remarks("draft", draft)
    yield from draft.notes
    if serving.method == "draft_model":
        yield from _pair_remarks(target, draft)

    if deployment.draft_logits:
        share = deployment.logits_gb / deployment.gpu.pytorch_gb
        yield (
            "model runner V1 does not count the draft's logits when it sizes the cache: there, "
            f"lower --gpu-memory-utilization by {share:.3f}"
        )


def _memory_remarks(deployment: Deployment) -> Iterator[str]:
    """Which memory is meant where, and what of it is not counted."""
    gpu = deployment.gpu
    if gpu.nominal_gb != gpu.pytorch_gb and deployment.available_gib is None:
        yield (
            f"the KV cache comes out of the {gpu.pytorch_gib:g} GiB ({gpu.pytorch_gb:.1f} GB) that "
            "PyTorch finds on each GPU, since vLLM takes its share of these (on NVIDIA's, "
            "nvidia-smi shows 0.4 to 2 % more); memory, what is left and the shares count the "
            f"nominal {gpu.nominal_gb:g} GB, as deployment guides do"
        )

    if not deployment.counts_activations:
        yield (
            "activations and CUDA graphs, often 1 to 5 GB a GPU, are not counted: set --overhead, "
            "or --available-kv-cache to what vLLM logged as `Available KV cache memory`"
        )


def _cache_remarks(deployment: Deployment) -> Iterator[str]:
    """Which of vLLM 0.32's attention backends have this cache (v1/attention/backends)."""
    precision = deployment.cache.precision
    dtype = KV_CACHE_DTYPES[precision]

    if precision in {"int8", "int4"}:
        yield f"vLLM has `{dtype}` only in its Triton attention backend"
    elif precision == "fp4":
        yield f"vLLM has `{dtype}` only in its FlashInfer backend, on GPUs that can compute with it"
    elif precision == "fp8" and deployment.target.has_sparse_cache:
        yield (
            "the cache is counted in the layout `fp8_ds_mla` of vLLM's FlashMLA backend; that of "
            "its FlashInfer backend, on Blackwell, takes an eighth less"
        )


def _file_remarks(part: str, model: ModelShape) -> Iterator[str]:
    """Where vLLM gets the weights, if not from the folder that was named as they are."""
    if not model.needs_other_files:
        if not model.has_weights:
            yield (
                f"{model.name} has no *.safetensors: in the line, write the name under which vLLM "
                f"finds the {part}"
            )
        return

    quantization = "give vLLM a --quantization"
    if part == "draft":
        quantization = 'give vLLM\'s speculative config a "quantization"'
    yield (
        f"the {part}'s files are {model.file_precision}: name a checkpoint at {model.precision}, "
        f"or {quantization} that makes it on load"
    )


def _pair_remarks(target: ModelShape, draft: ModelShape) -> Iterator[str]:
    if target.tokenizer is None or draft.tokenizer is None:
        yield (
            "make sure that both models have the same tokenizer: vLLM compares only the sizes of "
            "the vocabularies, and if an id means different tokens, nothing is accepted"
        )

    yield (
        "1:8 to 1:12 is a habit, not a law: vLLM's own benchmark used 1:140 and won at low load. "
        "A smaller draft costs less, and less of it is accepted: measure which is better"
    )
    yield _cost(target, draft)
    if BYTES[target.precision] < BYTES[draft.precision]:
        yield (
            f"the target is at {target.precision} and the draft at {draft.precision}: quantize the "
            "draft first, as its errors cost acceptance but never quality, or use one for both"
        )


def _cost(target: ModelShape, draft: ModelShape) -> str:
    """What acceptance rate breaks even at light load.

    Decoding is bound by reading the weights then. With K tokens a step takes as long as 1 + c K
    plain ones, so the acceptance rate (1 + c K - 1) / K = c breaks even.
    """
    if target.active_gb is None or draft.active_gb is None:
        return (
            "what a draft token costs is not known: it follows from the experts per token of a "
            "mixture of experts (MoE), which config.json does not name. Measure it with "
            "`specdec-sidecar sweep`"
        )

    cost = draft.active_gb / target.active_gb
    raises = "Load raises that"
    if target.is_by_hand:
        raises = "For a mixture of experts (MoE), name its config.json. Load raises that"
    elif target.is_moe:
        raises = "Load raises that, and so do the experts that verification adds to a step"
    return (
        f"at light load a draft token takes about {cost:.2g} of a target step, so K tokens break "
        f"even at a length of 1 + {cost:.2g} K, an acceptance rate of {cost:.0%}. "
        f"{raises}: it is a lower bound, not a forecast"
    )
