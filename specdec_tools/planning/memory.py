"""How much of a GPU's memory is left for the KV cache, and what fits into it.

The cache is divided as vLLM 0.32 does it (v1/core/kv_cache_utils.py). Layers that all have full
attention, or the same window, share one block table whatever their sizes. All others are grouped:
each group has the same number of layers (some of them padding) and a block table of its own, and
all blocks have the same size.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from specdec_tools.planning.gpus import Gpu
from specdec_tools.planning.shape import ModelShape

GIB: Final = 1024**3
LOGIT_BYTES: Final = 4
"""Of each logit of a draft that samples, which vLLM keeps until verification."""
_LEAST_ACTIVATIONS: Final = 1.0
"""GB on a GPU: activations and CUDA graphs of large models often take 1 to 5."""
_STATES_WITH_PREFIXES: Final = 2
"""Of a request without speculation: its own, and the one at the end of a block that others find."""
_MLA_BLOCK_SIZE: Final = 128  # a multiple of it, beside states
# Two kinds of layers whose numbers differ by less are padded to the larger number.
_PADDED: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """``block_size`` tokens a block; ``in_flight`` tokens of a prefill keep blocks of a window.

    A step verifies ``draft_tokens``, 0 without speculation.
    """

    precision: str = "bf16"
    block_size: int = 16
    in_flight: int = 8192
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Alike:
    """Layers that may share block tables; ``bytes_in_block`` is what one of them puts into a block.

    A block has ``tokens`` of them, or a whole state where that is None.
    """

    count: int
    bytes_in_block: float
    tokens: int | None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class _Tables:
    """A number of a request's block tables; ``tokens`` and ``window`` are as in ``_Alike``."""

    number: int
    tokens: int | None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of one GPU: bytes of a block, and the block tables of a request."""

    block_bytes: float
    tables: tuple[_Tables, ...]
    options: CacheOptions

    @property
    def bytes_per_token(self) -> float:
        """Of a short request, before any window is full."""
        blocks = sum(one.number / one.tokens for one in self.tables if one.tokens is not None)
        return self.block_bytes * blocks

    @property
    def bytes_per_sequence(self) -> float:
        """The states of a request, whatever its length."""
        return self.block_bytes * sum(self._held(one, 0) for one in self.tables if not one.tokens)

    def blocks(self, available: float) -> int:
        """The number of blocks in ``available`` bytes."""
        return int(max(0.0, available) // self.block_bytes)

    def blocks_of_a_request(self, tokens: int) -> int:
        """The number of blocks that a request of so many tokens holds."""
        return sum(self._held(tables, tokens) for tables in self.tables)

    def _held(self, tables: _Tables, tokens: int) -> int:
        if tables.tokens is None:
            return tables.number * (_STATES_WITH_PREFIXES + self.options.draft_tokens)
        if tables.window is None:
            return tables.number * math.ceil(tokens / tables.tokens)

        kept = min(tables.window - 1 + self.options.in_flight, tokens)
        # One block more, since a window may begin inside a block.
        return tables.number * (math.ceil(kept / tables.tokens) + 1)

    def requests(self, available: float, tokens: int) -> float:
        """How many requests of so many tokens fit at once."""
        return self.blocks(available) / self.blocks_of_a_request(tokens)

    def tokens(self, available: float, context: int) -> int:
        """The tokens in requests of ``context`` tokens: what vLLM prints as its cache's size."""
        return int(self.requests(available, context) * context)


def cache_of(models: Sequence[tuple[ModelShape, int]], options: CacheOptions) -> Cache | None:
    """The cache of models, each with its tensor parallel size; None if one of them is unknown.

    The first one is the target.
    """
    if any(not model.layers for model, _ in models):
        return None

    states = [
        (state.count, state.bytes_per_state(parallel, options.draft_tokens))
        for model, parallel in models
        for state in model.states
    ]
    block_size = _block_size(*models[0], states, options)
    alike = [
        _Alike(
            layers.count,
            layers.bytes_per_token(parallel, options.precision) * block_size,
            block_size,
            layers.window,
        )
        for model, parallel in models
        for layers in model.layers
    ]
    if not states and len({one.window for one in alike}) == 1:
        block_bytes = sum(one.count * one.bytes_in_block for one in alike)
        return Cache(block_bytes, (_Tables(1, block_size, alike[0].window),), options)

    alike += [_Alike(count, bytes_in_block, None) for count, bytes_in_block in states]
    return _grouped(alike, options)


def _block_size(
    target: ModelShape,
    tensor_parallel: int,
    states: Sequence[tuple[int, float]],
    options: CacheOptions,
) -> int:
    """The tokens of a block, which is at least as large as a state is.

    As in ``_align_hybrid_block_size`` of vLLM 0.32 (platforms/interface.py).
    """
    if not states:
        return options.block_size

    step = options.block_size
    if target.has_latent_cache:
        step = max(step, _MLA_BLOCK_SIZE)
    of_a_step = step * max(
        layers.bytes_per_token(tensor_parallel, options.precision) for layers in target.layers
    )
    largest = max(bytes_in_block for _, bytes_in_block in states)
    return max(options.block_size, step * math.ceil(largest / of_a_step))


def _grouped(layers: Sequence[_Alike], options: CacheOptions) -> Cache:
    """Layers of several windows, or with states beside them.

    A layer that puts less into a block than another one has more tokens in it, where a whole number
    of its blocks fits, or else is padded.
    """
    largest = max(one.bytes_in_block for one in layers)
    counts = Counter[tuple[float, int | None, int | None]]()
    for one in layers:
        tokens = one.tokens
        fitting = largest / one.bytes_in_block
        if tokens is not None and fitting.is_integer():
            tokens *= int(fitting)
        counts[one.bytes_in_block, tokens, one.window] += one.count

    fewest, most = min(counts.values()), max(counts.values())
    together = most if most < fewest * _PADDED else fewest
    tables = tuple(
        _Tables(math.ceil(count / together), tokens, window)
        for (_, tokens, window), count in counts.items()
    )
    return Cache(together * largest, tables, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A target, and what drafts for it if anything does, on ``gpus`` of the same kind.

    The target is split over all GPUs, the draft over ``draft_parallel`` of them or copied to each
    (1). ``utilization`` is the share of what PyTorch finds that vLLM may use; ``overhead_gb``
    of it on each GPU is for activations and CUDA graphs. ``available_gib``, if given, is the
    cache's memory on each GPU without a draft as vLLM itself logged it, instead of the calculation.
    ``draft_logits`` is their number if the draft samples its tokens.
    """

    target: ModelShape
    draft: ModelShape | None
    gpus: int
    gpu: Gpu
    utilization: float
    draft_parallel: int
    cache: CacheOptions
    overhead_gb: float = 0.0
    available_gib: float | None = None
    draft_logits: int = 0

    @property
    def memory_gb(self) -> float:
        """The nominal memory of all GPUs, not only vLLM's part."""
        return self.gpus * self.gpu.nominal_gb

    @property
    def pytorch_gb(self) -> float:
        """The memory that PyTorch finds on all GPUs, of which vLLM takes its share."""
        return self.gpus * self.gpu.pytorch_gb

    @property
    def draft_gb(self) -> float:
        """The weights of the draft on all GPUs together."""
        if self.draft is None:
            return 0.0
        copies = self.gpus // self.draft_parallel
        return self.draft.weights_gb * copies

    @property
    def weights_gb(self) -> float:
        """The weights of both models on all GPUs together."""
        return self.target.weights_gb + self.draft_gb

    @property
    def left_gb(self) -> float:
        """All nominal memory minus the weights, whatever vLLM may use of it."""
        return self.memory_gb - self.weights_gb

    @property
    def logits_gb(self) -> float:
        """What the draft's logits take on each GPU."""
        return self.draft_logits * LOGIT_BYTES / 1e9

    @property
    def kv_gb(self) -> float:
        """What is left for the KV cache on all GPUs; at 0 or below, the models do not fit."""
        if self.available_gib is not None:
            without_draft = self.gpus * self.available_gib * GIB / 1e9
        else:
            usable = self.gpu.pytorch_gb * self.utilization - self.overhead_gb
            without_draft = self.gpus * usable - self.target.weights_gb
        return without_draft - self.draft_gb - self.gpus * self.logits_gb

    @property
    def kv_cache(self) -> Cache | None:
        """The KV cache of each GPU; None if a model's is unknown."""
        models = [(self.target, self.gpus)]
        if self.draft is not None:
            models.append((self.draft, self.draft_parallel))
        return cache_of(models, self.cache)

    @property
    def takes_room(self) -> bool:
        """Whether speculation takes room from the KV cache: a draft's, or that of more states."""
        return self.draft is not None or (
            self.cache.draft_tokens > 0 and len(self.target.states) > 0
        )

    @property
    def counts_activations(self) -> bool:
        """Whether the overhead, or what vLLM logged, says what activations and CUDA graphs take."""
        return self.available_gib is not None or self.overhead_gb > 0

    @property
    def can_be_split(self) -> bool:
        """Whether vLLM can split the attention heads of both models over their GPUs."""
        draft_can_be = self.draft is None or self.draft.can_be_split(self.draft_parallel)
        return draft_can_be and self.target.can_be_split(self.gpus)

    def without_draft(self) -> "Deployment":
        """The same target, decoding plainly."""
        cache = replace(self.cache, draft_tokens=0)
        return replace(self, draft=None, draft_logits=0, cache=cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a deployment has for the KV cache on all its GPUs; None where the cache is unknown.

    ``request_gb`` is what one request takes of it. Where that is unknown, at least ``least_gb`` is
    wanted, since what is not counted takes it.
    """

    gb: float
    blocks: int | None
    tokens: int | None
    requests: int | None
    request_gb: float | None
    bytes_per_token: float | None  # on each GPU
    bytes_per_sequence: float | None  # of layers that keep a state, on each GPU
    least_gb: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether vLLM starts: it wants room for one request, where its size is known."""
        return self.gb > self.least_gb and self.requests != 0


def room(deployment: Deployment, context: int) -> Room:
    """The room for requests of ``context`` tokens."""
    cache = deployment.kv_cache
    if cache is None:
        return Room(
            gb=deployment.kv_gb,
            blocks=None,
            tokens=None,
            requests=None,
            request_gb=None,
            bytes_per_token=None,
            bytes_per_sequence=None,
            least_gb=0.0 if deployment.counts_activations else deployment.gpus * _LEAST_ACTIVATIONS,
        )

    available = deployment.kv_gb * 1e9 / deployment.gpus
    request = cache.blocks_of_a_request(context) * cache.block_bytes
    return Room(
        gb=deployment.kv_gb,
        blocks=cache.blocks(available),
        tokens=cache.tokens(available, context),
        requests=int(cache.requests(available, context)),
        request_gb=deployment.gpus * request / 1e9,
        bytes_per_token=cache.bytes_per_token,
        bytes_per_sequence=cache.bytes_per_sequence,
    )
