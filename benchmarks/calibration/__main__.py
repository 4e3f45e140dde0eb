"""``python -m benchmarks.calibration NAME``: simulates what the product claims of its errors."""

import sys
from importlib import import_module
from typing import Final

NAMES: Final = ("changes", "endings", "gates", "groups", "verdicts")


def main() -> int:
    """Runs the one that is named."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(f"usage: python -m benchmarks.calibration {'|'.join(NAMES)} …", file=sys.stderr)
        return 2
    module = import_module(f"benchmarks.calibration.{sys.argv[1]}")
    code: int = module.main(sys.argv[2:])
    return code


if __name__ == "__main__":
    sys.exit(main())
