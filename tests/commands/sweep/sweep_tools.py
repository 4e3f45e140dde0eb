"""A sweep of a server, small unless told otherwise."""

import asyncio

from sidecar.commands.sweep.options import SweepOptions
from sidecar.commands.sweep.prompts import BUILT_IN
from sidecar.commands.sweep.sweep import sweep


async def swept(url, prompts=BUILT_IN, stop=None, **options):
    given = {"temperatures": (0.0, 1.2), "at_once": (4,), "requests": 24, "max_tokens": 48} | options
    return await sweep(SweepOptions(url, **given), prompts, stop or asyncio.Event(), lambda *_: None)
