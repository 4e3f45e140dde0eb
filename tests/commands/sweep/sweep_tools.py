"""A sweep of a server, small by default."""

import asyncio
from contextlib import asynccontextmanager
from unittest.mock import patch

from sidecar.commands.sweep.options import ENDPOINTS, RequestOptions, SweepOptions
from sidecar.commands.sweep.prompts import BUILT_IN
from sidecar.commands.sweep.sweep import sweep
from sidecar.commands.sweep.workload import Load
from sidecar.demo.options import SimulatorOptions
from tests.demo.http_vllm import HttpVllm, Reply


async def swept(url, prompts=BUILT_IN, stop=None, *, at_once=(4,), rates=(), on_end=lambda *_: None, **options):
    given = {"temperatures": (0.0, 1.2), "count": 24, "max_tokens": 48} | options
    sending = {name: given.pop(name) for name in ("max_tokens", "timeout", "api_key") if name in given}
    requests = RequestOptions(endpoint=ENDPOINTS[given.pop("endpoint", "chat")], **sending)
    loads = (*(Load(at_once=one) for one in at_once), *rates)
    asked = SweepOptions(url=url, loads=loads, requests=requests, **given)
    return await sweep(asked, prompts, stop or asyncio.Event(), on_end)


@asynccontextmanager
async def simulated(*, exact=True, **options):
    """A simulated vLLM; ``exact``: its replies have the request's own acceptance."""
    whole = Reply.end
    with patch.object(Reply, "end", whole if exact else lambda reply: whole(reply) | {"metrics": None}):
        async with HttpVllm(SimulatorOptions(**{"speed": 8, **options})) as vllm:
            yield vllm
