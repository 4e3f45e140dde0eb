"""``sweep`` on a real vLLM: its requests' own numbers where vLLM tells them, else vLLM's counters."""

import pytest

from tests.commands.sweep.sweep_tools import swept

pytestmark = pytest.mark.lab


async def test_a_sweep_finds_what_vllm_counts_with_and_without_per_request_numbers(lab, samples):
    greedy = []
    for exact in ("1", "0"):
        vllm = lab("draft_model", EXACT=exact)
        await vllm.start()
        result = await swept(vllm.url, temperatures=(0.0, 0.8))
        counted = await samples(vllm.url)
        await vllm.kill()
        assert result.complete
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            total = counted.value(f"vllm:spec_decode_num_{name}_total")
            assert sum(getattr(one, name) for one in result.temperatures) == total > 0, (exact, name)
        greedy.append(result.temperatures[0].acceptance)
    # Greedy answers to the same prompts are the same; what is sampled at 0.8 is not.
    assert greedy[1] == pytest.approx(greedy[0], abs=0.05)
