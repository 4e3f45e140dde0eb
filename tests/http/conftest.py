import asyncio
import inspect

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """Tests of the servers run on both event loops, those of decoding need none."""
    if not inspect.iscoroutinefunction(getattr(item, "function", None)):
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
