"""How much of a GPU's memory is left for the KV cache, and what fits into it.

The cache is divided as vLLM 0.32 does it (v1/core/kv_cache_utils.py). Layers with full attention
share one block table whatever their sizes. Where some layers have a sliding window, layers are
grouped by window, all groups have the same number of layers (some of them padding), and each group
has a block table of its own.
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
# Two kinds of layers whose numbers differ by less are padded to the larger number.
_PADDED: Final = 1.5


@dataclass(frozen=True, slots=True)
class _LayerGroup:
    """Layers with the same window on one GPU; ``page_bytes`` is what one caches per token."""

    count: int
    page_bytes: float
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """``block_size`` tokens a block; ``in_flight`` tokens of a prefill keep blocks of a window."""

    precision: str = "bf16"
    block_size: int = 16
    in_flight: int = 8192


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of one GPU: bytes of a block, and the block tables of a request."""

    block_bytes: float
    tables: tuple[tuple[int | None, int], ...]
    """The window of some tables, and their number."""
    options: CacheOptions

    @property
    def bytes_per_token(self) -> float:
        """Of a short request, before any window is full."""
        tables = sum(number for _, number in self.tables)
        return self.block_bytes * tables / self.options.block_size

    def blocks(self, available: float) -> int:
        """The number of blocks in ``available`` bytes."""
        return int(max(0.0, available) // self.block_bytes)

    def blocks_of_a_request(self, tokens: int) -> int:
        """The number of blocks that a request of so many tokens holds."""
        size = self.options.block_size
        needed = 0
        for window, number in self.tables:
            held = math.ceil(tokens / size)
            if window is not None:
                kept = min(window - 1 + self.options.in_flight, tokens)
                # One block more, since a window may begin inside a block.
                held = math.ceil(kept / size) + 1
            needed += number * held

        return needed

    def requests(self, available: float, tokens: int) -> float:
        """How many requests of so many tokens fit at once."""
        return self.blocks(available) / self.blocks_of_a_request(tokens)

    def tokens(self, available: float, context: int) -> int:
        """The tokens in requests of ``context`` tokens: what vLLM prints as its cache's size."""
        return int(self.requests(available, context) * context)


def cache_of(models: Sequence[tuple[ModelShape, int]], options: CacheOptions) -> Cache | None:
    """The cache of models, each with its tensor parallel size; None if one of them is unknown."""
    if any(not model.layers for model, _ in models):
        return None

    groups = [
        _LayerGroup(
            layers.count, layers.bytes_per_token(parallel, options.precision), layers.window
        )
        for model, parallel in models
        for layers in model.layers
    ]
    windows = Counter[int | None]()
    for group in groups:
        windows[group.window] += group.count

    if len(windows) == 1:
        page = sum(group.count * group.page_bytes for group in groups)
        (window,) = windows
        return Cache(page * options.block_size, ((window, 1),), options)

    return _hybrid(groups, windows, options)


def _hybrid(
    groups: Sequence[_LayerGroup], windows: Counter[int | None], options: CacheOptions
) -> Cache:
    """Several windows.

    Where layers also differ in size, which vLLM packs in more ways than one, the mean counts.
    """
    layers = sum(group.count for group in groups)
    page = sum(group.count * group.page_bytes for group in groups) / layers

    fewest = min(windows.values())
    most = max(windows.values())
    together = most if most < fewest * _PADDED else fewest
    tables = tuple((window, math.ceil(count / together)) for window, count in windows.items())
    return Cache(together * page * options.block_size, tables, options)


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
        if self.draft is not None and self.draft.parameters:
            models.append((self.draft, self.draft_parallel))
        return cache_of(models, self.cache)

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
        """The same target alone."""
        return replace(self, draft=None, draft_logits=0)


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
    )
