"""The numbers of a model that decide how much memory it takes."""

from dataclasses import dataclass
from typing import Final

BYTES: Final = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
}
"""Bytes of a parameter or a cached value, without the scales of a quantization."""
UNQUANTIZED: Final = "bf16"
_FLOATS: Final = frozenset({"fp32", "bf16", "fp16"})  # vLLM loads each as another with --dtype


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Attention layers that cache alike.

    ``head_values`` are the values cached per token and KV head: key and value, or the latent vector
    of multi-head latent attention (MLA), which counts as one head. ``window`` is the sliding window
    in tokens, None for full attention.
    """

    count: int
    kv_heads: int
    head_values: int
    window: int | None = None

    def values_per_token(self, tensor_parallel: int) -> int:
        """The values that each of so many GPUs caches per token in one layer.

        GPUs beyond the number of heads hold copies (vLLM 0.32, config/model.py,
        ``get_num_kv_heads``).
        """
        return max(1, self.kv_heads // tensor_parallel) * self.head_values


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A target or a draft.

    ``name`` is its folder, empty if it was given by its size. ``parameters`` are all of them,
    ``embedded`` those of the embedding and the output matrix, which a quantization leaves at 16
    bits; 0 if the model was given by its size. ``file_bytes`` is the size of the weights on disk,
    None if they are not there or ``precision`` is not that of the files. ``file_precision`` is
    that, None if unknown. ``layers`` are empty if the KV cache is unknown. ``heads`` are those of
    attention. They, ``family``, ``vocabulary`` and ``tokenizer`` (a digest) are None if unknown.
    ``notes`` say what is not counted.
    """

    name: str
    parameters: float
    embedded: float = 0.0
    precision: str = UNQUANTIZED
    file_bytes: int | None = None
    file_precision: str | None = None
    heads: int | None = None
    layers: tuple[CachedLayers, ...] = ()
    family: str | None = None
    vocabulary: int | None = None
    tokenizer: str | None = None
    longest_context: int | None = None
    mtp: "ModelShape | None" = None
    """The target's own layers that can draft."""
    notes: tuple[str, ...] = ()

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

    def can_be_split(self, tensor_parallel: int) -> bool:
        """Whether vLLM splits its attention heads over so many GPUs; true if they are unknown."""
        return self.heads is None or self.heads % tensor_parallel == 0

    @property
    def billions(self) -> float:
        """Its parameters in 10^9."""
        return self.parameters / 1e9

    @property
    def weights_gb(self) -> float:
        """The weights of the whole model in GB of 10^9 bytes."""
        if self.file_bytes is not None:
            return self.file_bytes / 1e9

        size = BYTES[self.precision]
        embedding_size = max(size, BYTES[UNQUANTIZED])
        quantized = self.parameters - self.embedded
        return (quantized * size + self.embedded * embedding_size) / 1e9
