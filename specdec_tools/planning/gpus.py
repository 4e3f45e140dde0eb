"""GPUs by name: the memory that their data sheets name, and what PyTorch finds on them."""

from dataclasses import dataclass
from typing import Final

_GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, which is one rank of vLLM's tensor parallelism.

    ``nominal_gb`` is the size on its data sheet, by which deployment guides count. ``pytorch_gib``
    is the total that PyTorch finds, of which vLLM takes its share (0.32, ``MemorySnapshot`` in
    utils/mem_utils.py).
    """

    nominal_gb: float
    pytorch_gib: float

    @property
    def pytorch_gb(self) -> float:
        """What PyTorch finds, in GB of 10^9 bytes."""
        return self.pytorch_gib * _GIB / 1e9


def of_size(gigabytes: float) -> Gpu:
    """A GPU of so many GB of 10^9 bytes, on its data sheet and for PyTorch alike."""
    return Gpu(gigabytes, gigabytes * 1e9 / _GIB)


# The sizes in GiB are those that PyTorch names in published out-of-memory errors ("GPU 0 has a
# total capacity of 79.11 GiB", vLLM issue 27508) and device properties, with ECC where a card has
# it on as delivered. They vary by driver and form factor, mostly by less than 0.2 GiB: among the
# published ones, the smaller count. On NVIDIA's, ``nvidia-smi`` shows 0.4 to 2 % more.
GPUS: Final = {
    "a10": Gpu(24.0, 22.06),
    "a30": Gpu(24.0, 23.53),
    "l4": Gpu(24.0, 22.03),
    "rtx4090": Gpu(24.0, 23.52),
    "rtx5090": Gpu(32.0, 31.36),
    "a100-40": Gpu(40.0, 39.38),
    "a40": Gpu(48.0, 44.34),
    "l40s": Gpu(48.0, 44.39),
    "a100-80": Gpu(80.0, 79.14),
    "h100": Gpu(80.0, 79.11),
    "mi250": Gpu(64.0, 63.98),  # one of its two dies: each is a GPU for vLLM
    "h200": Gpu(141.0, 139.8),
    "b200": Gpu(180.0, 178.35),
    "mi300x": Gpu(192.0, 191.98),
    "mi325x": Gpu(256.0, 255.98),
}
