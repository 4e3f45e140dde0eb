"""What a real Prometheus makes of the counters at restarts.

The sidecar, vLLM or one of its engines restarts.

``stack.py`` says how it is measured; ``pytest -s tests/restarts`` prints the figures as a table.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.restarts.stack import SERIES, Stack, running_stack

CLOSE = 0.02  # of all drafts, for each label value and for their sum
SPIKE = 1.5  # times the engines' highest rate: reports and scrapes are not at the same moments
MANY = {
    "temperatures": tuple(number / 100 for number in range(1, 121)),
    "adapters": tuple(f"adapter-{number}" for number in range(40)),
}
ONE_PAGE = {"engines": 2, "shows_start": False}


async def sidecar(stack):
    await stack.restart_sidecar(times=5, drafts=3000)


async def both(stack):
    """While vLLM is down, the last values stay. One of the kills ends both at the same time."""
    await stack.drain()
    await stack.kill("vllm")
    for series in SERIES.values():
        await stack.shows(f"sum({series}) and on() specdec_up == 0")
    await stack.start("vllm")
    await stack.request("traffic")
    await stack.drafted(3000)
    await stack.restart_sidecar(times=2)
    await stack.drain()
    await stack.kill("vllm", "sidecar")
    await stack.start("vllm", "sidecar")
    await stack.request("traffic")
    await stack.is_scraped()
    await stack.drafted(2000)
    await stack.restart_sidecar(times=2)


async def one_engine(stack):
    for _ in range(2):
        await stack.drain()
        await stack.request("replace")
        await stack.request("traffic")
        await stack.drafted(4000)


async def engine_left(stack):
    await stack.drafted(3000)
    await stack.drain()
    await stack.request("leave")
    await stack.request("traffic")
    await stack.drafted(3000)
    await stack.restart_sidecar()


@dataclass(frozen=True)
class Scenario:
    """``restarts`` of vLLM, and of engine 1.

    In each of vLLM's any series may fall once; in engine 1's, its own may.

    ``forgets``: the one case in which a restart of the sidecar makes sums over engines fall, as
    docs/metrics.md says.
    """

    name: str
    act: Callable[[Stack], Awaitable[None]]
    options: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    engine_restarts: int = 0
    forgets: bool = False

    def may_fall(self, label, value):
        return self.engine_restarts if (label, value) == ("engine", "1") else self.restarts


SCENARIOS = (
    Scenario("sidecar killed five times, 120 temperatures, 40 adapters", sidecar, MANY),
    Scenario("both, five kills and two restarts", both, restarts=2),
    Scenario(
        "one of two engines restarted twice, no start time", one_engine, ONE_PAGE, engine_restarts=2
    ),
    Scenario(
        "the same, counters of its API server go on", one_engine, {"engines": 2, "keeps_page": True}
    ),
    Scenario("sidecar killed after an engine left", engine_left, {"engines": 2}, forgets=True),
)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_increase_and_rate_equal_vllms_own_counts(scenario, http, folder):
    async with running_stack(http, folder, **scenario.options) as stack:
        await stack.begin()
        await scenario.act(stack)
        measured = await stack.end()
    off, falls = [], []
    for by, figures in measured.items():
        sums = (sum(each.values()) for each in (figures.truth, figures.increase, figures.falls))
        print(scenario.name, by, *map(round, sums), f"{figures.rate:.2f}", sep=" | ")  # noqa: T201 - as said
        if scenario.forgets and by != "engine":
            continue
        assert figures.rate < SPIKE
        off += [
            (by, value, error) for value, error in figures.errors().items() if abs(error) > CLOSE
        ]
        falls += [
            (by, value)
            for value, times in figures.falls.items()
            if times > scenario.may_fall(by, value)
        ]
    assert (off, falls) == ([], [])
