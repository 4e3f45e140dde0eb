import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """Every test here runs on both event loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
