"""Unusable options are refused with a remedy."""

import pytest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import Phase, TrafficOptions
from sidecar.errors import SettingsError


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"speed": 0}, "speed"),
        ({"cold_acceptance": 1.1}, "cold_acceptance"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
        ({"max_num_seqs": 1000}, "max_num_batched_tokens"),
        ({"num_gpu_blocks": 512}, "num_gpu_blocks"),  # 8192 tokens and no room for drafts
    ],
)
def test_simulator_refuses(options, named):
    with pytest.raises(SettingsError) as raised:
        SimulatorOptions(**options)
    assert [fault.split(":")[0] for fault in raised.value.messages] == [named]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"base_url": "http://192.0.2.1:8000"}, "base_url"),
        ({"base_url": "http://127.0.0.1.example.org"}, "base_url"),
        ({"base_url": "http://127.0.0.1@example.org"}, "base_url"),
        ({"base_url": ""}, "base_url"),
        ({"concurrency": 0}, "concurrency, max_requests, phases"),
        ({"phases": (Phase(1.0, {0.0: 0}),)}, "phases"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens, max_tokens"),
    ],
)
def test_traffic_refuses(options, named):
    with pytest.raises(SettingsError) as raised:
        TrafficOptions(**{"base_url": "http://127.0.0.1:1", **options})
    assert [fault.split(":")[0] for fault in raised.value.messages] == [named]
