"""Precisions of weights and of cached values."""

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
