"""How the simulated draft's acceptance depends on the temperature."""

from functools import lru_cache

from sidecar.demo.options import SimulatorOptions


def acceptance_rate(temperature: float, options: SimulatorOptions) -> float:
    """Expected accepted / drafted tokens (0-1) at ``temperature``: falls linearly, then is flat."""
    heat = min(max(temperature, 0.0) / options.hot_temperature, 1.0)
    return options.cold_acceptance + heat * (options.hot_acceptance - options.cold_acceptance)


@lru_cache(maxsize=1024)
def position_probability(rate: float, positions: int) -> float:
    """The probability (0-1) per position for which ``rate`` of all draft tokens is accepted.

    A position counts only if all before it were accepted, so the rate is the mean of p, p^2 … p^positions.
    """
    low, high = 0.0, 1.0
    for _ in range(40):  # bisects to float precision
        middle = (low + high) / 2
        if sum(middle**position for position in range(1, positions + 1)) / positions < rate:
            low = middle
        else:
            high = middle
    return high
