"""Background tasks that fail; tests/app has their end."""

import structlog
from structlog.testing import capture_logs

from sidecar.log import StateLog
from sidecar.supervise import Supervisor
from tests.waiting import until


async def test_a_task_that_fails_is_restarted_counted_and_logged_once_for_each_reason():
    log, runs = StateLog(structlog.get_logger("sidecar.test")), 0

    async def fails_in_two_ways():
        nonlocal runs
        runs += 1
        if runs <= 4:
            raise RuntimeError(runs)
        if runs <= 6:
            raise ValueError(runs)

    with capture_logs() as lines:
        async with Supervisor(log, pause=0.0) as supervisor:
            supervisor.start("poll", fails_in_two_ways)
            assert supervisor.failures == {"poll": 0}
            await until(lambda: runs, 7)
            assert supervisor.failures == {"poll": 6}
    assert [line["reason"].split(" at ")[0] for line in lines] == ["RuntimeError", "ValueError"]
    assert [line["exc_info"].args for line in lines] == [(1,), (5,)]
    assert {(line["log_level"], line["task"], line["event"]) for line in lines} == {
        ("error", "poll", "task failed; restarting")
    }
