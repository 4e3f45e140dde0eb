"""Memory of the accelerators on which vLLM runs, from their data sheets."""

from types import MappingProxyType
from typing import Final

GPU_GB: Final = MappingProxyType(  # 10^9 bytes each
    {
        "h100": 80.0,
        "h200": 141.0,
        "b200": 180.0,
        "a100-40": 40.0,
        "a100-80": 80.0,
        "a10": 24.0,
        "a30": 24.0,
        "a40": 48.0,
        "l4": 24.0,
        "l40s": 48.0,
        "rtx4090": 24.0,
        "rtx5090": 32.0,
        "mi250": 128.0,
        "mi300x": 192.0,
        "mi325x": 256.0,
    }
)

BYTES: Final = MappingProxyType({"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5})
"""Bytes per parameter or cached value, without quantization's scales and zero points."""
