"""One simulated vLLM process: its engine, its metrics page and its faults, without the HTTP around it."""

import time

from sidecar.demo.driver import EngineDriver
from sidecar.demo.engine import Engine
from sidecar.demo.faults import Faults
from sidecar.demo.metrics_page import MetricsPage
from sidecar.demo.options import SimulatorOptions


class Simulation:
    """What a restart replaces is replaced here; ``faults`` and ``options`` outlive it."""

    def __init__(self, options: SimulatorOptions) -> None:
        self.options = options
        self.faults = Faults()
        self._begin()

    def _begin(self) -> None:
        self.engine = Engine(self.options)
        self.page = MetricsPage(self.options, started=time.time())
        self.driver = EngineDriver(
            self.engine,
            speed=self.options.speed,
            on_step=self.page.record_step,
            on_abort=self.page.record_abort,
        )

    async def restart(self) -> None:
        """As a process that died and came back: counters at 0, requests broken off, a new start time."""
        await self.driver.stop()
        self._begin()
        self.driver.start()
