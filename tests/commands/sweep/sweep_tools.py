"""Sweeps of a server, small by default, and of none."""

import asyncio

from sidecar.commands.sweep.measured import Measured
from sidecar.commands.sweep.options import BUILT_IN, ENDPOINTS, RequestOptions, SweepOptions
from sidecar.commands.sweep.render import text
from sidecar.commands.sweep.summary import summarize
from sidecar.commands.sweep.sweep import sweep
from sidecar.commands.sweep.workload import Load, levels
from sidecar.demo.options import SimulatorOptions
from sidecar.settings import load_settings
from sidecar.settings.groups import Thresholds
from tests.demo.http_vllm import HttpVllm


async def swept(
    url, prompts=BUILT_IN, stop=None, *, at_once=(4,), rates=(), temperatures=(0.0, 1.2), mixes=(), **options
):
    given = {"count": 24, "rounds": 1, "seconds": 1800.0, "max_tokens": 48} | options
    sending = {name: given.pop(name) for name in ("max_tokens", "api_key") if name in given}
    on_end, baseline = given.pop("on_end", lambda _: None), given.pop("baseline_url", None)
    loads = (*(Load(at_once=one) for one in at_once), *(Load(rate=one) for one in rates))
    asked = SweepOptions(
        servers=(url,) if baseline is None else (url, baseline),
        requests=RequestOptions(prompts=prompts, endpoint=ENDPOINTS[given.pop("endpoint", "chat")], **sending),
        levels=levels(temperatures, mixes, loads),
        settings=load_settings(None, {"SPECDEC_SCRAPE_TIMEOUT": "60s"}),
        **given,
    )
    return await sweep(asked, stop or asyncio.Event(), on_end)


def summarized(result, **thresholds):
    return summarize(result, Thresholds(**thresholds))


def printed(result):
    return list(text(result, summarized(result)))


def simulated(**options):
    """A simulated vLLM, whose replies have the request's own acceptance."""
    return HttpVllm(SimulatorOptions(**{"speed": 8, **options}))


def measured(samples=(), *, failed=0, seconds=2.0, counted=None, others=False, complete=True):
    return Measured(
        samples=tuple(samples), failed=failed, seconds=seconds, counted=counted, others=others, complete=complete
    )
