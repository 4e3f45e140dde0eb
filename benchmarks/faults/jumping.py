"""A program whose wall clock jumps: ``python -m benchmarks.faults.jumping MODULE [ARGUMENT ...]``.

SIGUSR1 sets it an hour forward, SIGUSR2 an hour back; the monotonic clock does not jump, as on a real machine.
"""

import runpy
import signal
import sys
import time

HOUR = 3600.0


def main(module: str) -> None:
    real, ahead = time.time, 0.0

    def jumped() -> float:
        return real() + ahead

    def forward(*_: object) -> None:
        nonlocal ahead
        ahead += HOUR

    def back(*_: object) -> None:
        nonlocal ahead
        ahead -= HOUR

    time.time = jumped  # before anything else is imported, so that every part has this clock
    signal.signal(signal.SIGUSR1, forward)
    signal.signal(signal.SIGUSR2, back)
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
