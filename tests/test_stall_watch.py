import asyncio
import time
from contextlib import suppress

from sidecar.stall_watch import StallWatch


async def test_a_stall_is_seen_while_it_is_recent(eventually):
    watch = StallWatch(time.monotonic)
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - the stall
    await eventually(lambda: watch.longest > 0)
    running.cancel()
    assert watch.longest >= 0.2


async def test_a_minute_later_it_is_forgotten(monkeypatch):
    now, naps = [0.0], 0

    async def sleep(seconds):
        nonlocal naps
        naps += 1
        now[0] += seconds + (0.7 if naps == 10 else 0.0)
        if naps == 1300:
            raise asyncio.CancelledError
        seen.append(watch.longest)

    seen = []
    monkeypatch.setattr(asyncio, "sleep", sleep)
    watch = StallWatch(lambda: now[0])
    with suppress(asyncio.CancelledError):
        await watch.run()
    assert max(seen[:9]) < 0.01
    assert all(0.69 < longest < 0.71 for longest in seen[11:1000])
    assert seen[-1] < 0.01
