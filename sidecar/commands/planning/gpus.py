"""GPUs by name: the memory that their data sheets name, and what their drivers report."""

from dataclasses import dataclass
from typing import Final

_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, which is one rank of vLLM's tensor parallelism.

    ``nominal_gb`` is the size on its data sheet, by which deployment guides count. ``driver_mib``
    is the total that its driver reports, of which vLLM takes its share.
    """

    nominal_gb: float
    driver_mib: float

    @property
    def driver_gb(self) -> float:
        """What the driver reports, in GB of 10^9 bytes."""
        return self.driver_mib * _MIB / 1e9


def of_size(gigabytes: float) -> Gpu:
    """A GPU of so many GB of 10^9 bytes, on its data sheet and by its driver alike."""
    return Gpu(gigabytes, gigabytes * 1e9 / _MIB)


# The sizes in MiB are the totals in published outputs of ``nvidia-smi`` (the column Memory-Usage),
# with ECC where a card has it on as delivered; for AMD, those that PyTorch on ROCm names in its
# device properties and its out-of-memory errors.
GPUS: Final = {
    "a10": Gpu(24.0, 23_028),
    "a30": Gpu(24.0, 24_576),
    "l4": Gpu(24.0, 23_034),
    "rtx4090": Gpu(24.0, 24_564),
    "rtx5090": Gpu(32.0, 32_607),
    "a100-40": Gpu(40.0, 40_960),
    "a40": Gpu(48.0, 46_068),
    "l40s": Gpu(48.0, 46_068),
    "a100-80": Gpu(80.0, 81_920),
    "h100": Gpu(80.0, 81_559),
    "mi250": Gpu(64.0, 65_520),  # one of its two dies: each is a GPU for vLLM
    "h200": Gpu(141.0, 143_771),
    "b200": Gpu(180.0, 183_359),
    "mi300x": Gpu(192.0, 196_592),
    "mi325x": Gpu(256.0, 262_128),
}
