"""The numbers of a model that decide how much memory it takes."""

from dataclasses import dataclass
from typing import Final

from sidecar.sizes.caches import CachedLayers, StateLayers
from sidecar.sizes.precision import BYTES, UNQUANTIZED

_FLOATS: Final = frozenset({"fp32", "bf16", "fp16"})  # vLLM loads each as another with --dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A target or a draft.

    ``name`` is its folder, empty if it was given by its size. ``parameters`` are all of them, None
    if they are unknown, and then the weights are on disk. ``embedded`` are those of the embedding
    and the output matrix, which a quantization leaves at 16 bits; 0 if the model was given by its
    size. ``active_parameters`` are those that one token passes, fewer than all in a mixture of
    experts (MoE); None if that is not known. ``file_bytes`` is the size of the weights on disk,
    None if they are not there or ``precision`` is not that of the files. ``file_precision`` is
    that, None if unknown. ``layers`` are empty if the KV cache is unknown; ``states`` are the
    layers that keep one. ``heads`` are those of attention. They, ``family``, ``vocabulary`` and
    ``tokenizer`` (a digest) are None if unknown. ``notes`` say what is not counted.
    ``has_weights`` is whether vLLM can load it from its folder.
    """

    name: str = ""
    parameters: float | None
    active_parameters: float | None
    embedded: float = 0.0
    precision: str = UNQUANTIZED
    file_bytes: int | None = None
    file_precision: str | None = None
    heads: int | None = None
    layers: tuple[CachedLayers, ...] = ()
    states: tuple[StateLayers, ...] = ()
    family: str | None = None
    vocabulary: int | None = None
    tokenizer: str | None = None
    longest_context: int | None = None
    mtp: "ModelShape | None" = None
    """The target's own layers that can draft."""
    notes: tuple[str, ...] = ()
    has_weights: bool = True

    @property
    def is_by_hand(self) -> bool:
        """Whether it was given by its number of parameters."""
        return not self.name

    @property
    def needs_other_files(self) -> bool:
        """Whether no vLLM has this precision from these files without a quantization of its own."""
        if self.file_precision is None or self.file_precision == self.precision:
            return False
        return not _FLOATS.issuperset((self.file_precision, self.precision))

    @property
    def has_latent_cache(self) -> bool:
        """Whether its attention is MLA."""
        return any("latent" in layers.layout for layers in self.layers)

    @property
    def has_sparse_cache(self) -> bool:
        """Whether its attention is MLA of selected tokens."""
        return any(layers.layout == "sparse latent" for layers in self.layers)

    def can_be_split(self, tensor_parallel: int) -> bool:
        """Whether vLLM splits its attention heads over so many GPUs; true if they are unknown."""
        return self.heads is None or self.heads % tensor_parallel == 0

    @property
    def is_moe(self) -> bool:
        """Whether a token passes only some of the parameters."""
        return self.active_parameters != self.parameters

    @property
    def active_billions(self) -> float | None:
        """The parameters that one token passes in 10^9; None if they are not known."""
        return None if self.active_parameters is None else self.active_parameters / 1e9

    @property
    def active_gb(self) -> float | None:
        """The weights that a decoding step of one token reads in GB; None if they are not known.

        They are calculated for a mixture of experts, since files do not say which are active.
        """
        if self.active_parameters is None:
            return None
        return self._size_gb(self.active_parameters) if self.is_moe else self.weights_gb

    @property
    def weights_gb(self) -> float:
        """The weights of the whole model in GB of 10^9 bytes."""
        if self.file_bytes is not None:
            return self.file_bytes / 1e9

        return self._size_gb(self.parameters or 0.0)

    def _size_gb(self, parameters: float) -> float:
        """What so many of its parameters take, all the embedded ones among them."""
        size = BYTES[self.precision]
        embedding_size = max(size, BYTES[UNQUANTIZED])
        quantized = parameters - self.embedded
        return (quantized * size + self.embedded * embedding_size) / 1e9
