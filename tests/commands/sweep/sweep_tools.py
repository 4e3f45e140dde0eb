"""A sweep of a server, small by default."""

import asyncio
from contextlib import asynccontextmanager

from sidecar.commands.sweep.options import Load, SweepOptions
from sidecar.commands.sweep.prompts import BUILT_IN
from sidecar.commands.sweep.sweep import sweep
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm


async def swept(url, prompts=BUILT_IN, stop=None, *, at_once=(4,), rates=(), on_end=lambda *_: None, **options):
    given = {"temperatures": (0.0, 1.2), "requests": 24, "max_tokens": 48} | options
    loads = (*(Load(at_once=one) for one in at_once), *rates)
    asked = SweepOptions(url=url, loads=loads, **given)
    return await sweep(asked, prompts, stop or asyncio.Event(), on_end)


@asynccontextmanager
async def simulated(**options):
    async with SimulatedVllm(SimulatorOptions(**{"speed": 8, **options})) as vllm:
        yield vllm
