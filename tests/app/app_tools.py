"""Requests to the simulated vLLM, and what tests read on the sidecar's page."""

from sidecar.demo.traffic import Phase, Traffic, TrafficOptions

UP = ("specdec_up", frozenset())


async def work(vllm, requests=3, *, mix=None, **options):
    """Sends requests that draft."""
    asked = {"phases": (Phase(300, mix or {0.0: 1}),), "min_tokens": 40, "max_tokens": 60}
    await Traffic(vllm, TrafficOptions(max_requests=requests, **asked | options)).run()


def is_up(samples):
    return samples[UP] == 1


def total(samples, name, **labels):
    """The sum of a metric's samples."""
    return sum(value for (found, pairs), value in samples.items() if found == name and labels.items() <= set(pairs))
