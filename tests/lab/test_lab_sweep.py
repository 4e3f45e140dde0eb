"""``sweep`` on a real vLLM: its requests' own numbers where vLLM tells them, else vLLM's counters."""

import pytest

from tests.commands.sweep_tools import measured_sweep
from tests.lab.conftest import idle

pytestmark = pytest.mark.lab


async def test_a_sweep_finds_what_vllm_counts_with_and_without_per_request_numbers(observed, lab):
    greedy = []
    for exact, vllm in ((True, observed), (False, lab("draft_model", "--no-request-metrics"))):
        await vllm.start()
        before = await idle(vllm.url)
        result = await measured_sweep(vllm.url, temperatures=(0.0, 0.8))
        counted = await idle(vllm.url)
        assert result.complete
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            counter = f"vllm:spec_decode_num_{name}_total"
            grown = counted.value(counter) - before.value(counter)
            assert sum(getattr(one.speculating.acceptance, name) for one in result.levels) == grown > 0, (exact, name)
        greedy.append(result.levels[0].speculating.acceptance.rate)
    # Greedy answers to the same prompts are the same; what is sampled at 0.8 is not.
    assert greedy[1] == pytest.approx(greedy[0], abs=0.05)
