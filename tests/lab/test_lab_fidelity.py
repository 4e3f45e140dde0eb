"""``fidelity`` on a real vLLM: drafts change nothing, and synthetic acceptance does."""

import json

import pytest

from sidecar.commands.fidelity import FidelityOptions, compare_servers
from sidecar.commands.load.workload import BUILT_IN, RequestOptions
from sidecar.commands.outputs.greedy import NEAR_TIE

pytestmark = [pytest.mark.lab, pytest.mark.measured]

SAMPLED = json.dumps({"draft_sample_method": "probabilistic"})
SYNTHETIC = json.dumps(
    {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.8, 0.7]}
)


async def compared(tested, reference, **given):
    requests = RequestOptions(prompts=BUILT_IN[:8], endpoint="completions", max_tokens=32)
    options = {
        "tested": tested.url,
        "reference": reference.url,
        "requests": requests,
        "mode": "both",
        "temperature": 1.0,
        "samples": 400,
        "draft_tokens": 3,
        "near_tie": NEAR_TIE,
        "concurrency": 16,
    }
    return await compare_servers(FidelityOptions(**(options | given)))


async def test_drafts_leave_the_output_as_it_is_and_synthetic_acceptance_does_not(lab):
    plain = lab("off")
    await plain.start()
    found = {"off": await compared(plain, plain)}
    for name, *more in (
        ("greedy drafts",),
        ("sampled drafts", "--speculative", SAMPLED),
        ("synthetic", "--speculative", SYNTHETIC),
    ):
        server = lab("draft_model", *more)
        await server.start()
        found[name] = await compared(server, plain)
        server.kill()

    differ = {name for name, one in found.items() if one.greedy.differs or one.sampled.differs}
    assert differ == {"synthetic"}
    assert found["synthetic"].greedy.differs
    assert found["synthetic"].sampled.differs
    assert not any(one.control.differs for one in found.values())
    assert max(one.sampled.noticeable for one in found.values()) < 0.1
