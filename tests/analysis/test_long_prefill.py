"""A long prefill is no stall, though vLLM counts none of it before the first output."""

import pytest

from specdec_tools.demo.step_law import LinearLaw
from tests.analysis.analysis_tools import Pod
from tests.analysis.step_laws import Cell, SimulatedServer

# Each step of 2,048 tokens takes 12 s.
SLOW = LinearLaw(step=0.05, per_request=0.001, per_prefill_token=0.006)
BUDGET = 2048
PROMPT = Cell(1, 125_000, 8, is_warm=False)  # 100,000 tokens or more: lengths differ by a fifth
STEP_SECONDS = 12
CACHE = 1_000_000  # tokens


def prefill():
    """The tokens that the simulated engine has computed after each step of a prefill."""
    server = SimulatedServer(SLOW, budget=BUDGET)
    server._send(PROMPT)
    while True:
        begun = server.at
        server._step(PROMPT)
        (request,) = server.scheduler.running
        if not request.is_prefilling:
            return

        assert server.at - begun > STEP_SECONDS
        yield request.num_computed_tokens


def stalls(*, has_heartbeat, shows_cache):
    """Whether an engine ever counts as stalled during a prefill, polled each second.

    The page says how full the KV cache is only with ``shows_cache``.
    """
    pod = Pod()
    pod.plugin.heartbeat = 0 if has_heartbeat else None
    pod.serve((0, 10, 20), polls=10)

    found = set()
    usage = 0.5
    for computed in prefill():
        for _ in range(STEP_SECONDS):
            pod.poll(pod.plugin.counted(usage=usage))
            if pod.state.health.suspects_stall:
                pod.state.health.answered(pod.at, is_paused=False)
            found.add(bool(pod.report().health.stalled))

        if has_heartbeat:
            pod.plugin.heartbeat += 1
        pod.plugin.tick()
        if shows_cache:
            usage = computed / CACHE
    return True in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has_heartbeat", "shows_cache", "expected"),
    [(True, False, False), (False, True, False), (False, False, True)],
    ids=["by_the_plug_in", "by_the_cache", "by_nothing"],
)
def test_a_prompt_of_100_000_tokens_is_no_stall_where_anything_shows_that_it_goes_on(
    has_heartbeat, shows_cache, expected
):
    """Ten minutes without an output; with neither sign, nobody could tell it from a hang."""
    assert stalls(has_heartbeat=has_heartbeat, shows_cache=shows_cache) == expected
