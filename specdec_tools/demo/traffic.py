"""Traffic for a simulated vLLM: mixed temperatures, some long prompts, some structured output."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from specdec_tools.demo.scheduler import Request, RequestStatus, SamplingParams
from specdec_tools.demo.server import SimulatedVllm

Mix = Mapping[float, float]  # temperature -> weight

COLD: Mix = MappingProxyType({0.0: 6, 0.3: 2, 0.7: 1, 1.0: 1})
MIXED: Mix = MappingProxyType({0.0: 3, 0.3: 2, 0.7: 2, 1.0: 3})
HOT: Mix = MappingProxyType({0.0: 1, 0.7: 2, 1.0: 5, 1.2: 2})


COLD_HOT_COLD = (COLD, MIXED, HOT, MIXED, COLD)


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What to send. The mixes follow each other, and repeat, until ``max_requests`` are sent.

    A fifth of the prompts have 600 to 2,999 tokens, the others 20 to 99. A fifth ask for structured
    output.
    """

    mixes: tuple[Mix, ...] = COLD_HOT_COLD
    mix_seconds: float = 60.0  # how long each mix lasts
    concurrency: int = 8  # requests in flight
    max_requests: int = 10_000  # in total
    min_tokens: int = 16  # shortest completion
    max_tokens: int = 160  # longest completion


class Traffic:
    """Sends requests to ``vllm`` until it is done or cancelled, which aborts those in flight.

    ``clock`` returns seconds. ``ended`` is called with each request that completes.
    """

    def __init__(
        self,
        vllm: SimulatedVllm,
        options: TrafficOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        ended: Callable[[Request], None] = lambda _: None,
    ) -> None:
        self._vllm = vllm
        self._options = options
        self._clock = clock
        self._ended = ended
        self._random = Random(0)
        self._begun = 0.0
        self._sent = 0
        self.completed = 0
        self.failed = 0
        self.mix: Mix | None = None  # what is sent instead of the options' mixes

    async def run(self) -> None:
        """Sends everything."""
        self._begun = self._clock()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.concurrency):
                group.create_task(self._client())

    def stop(self) -> None:
        """Sends no more requests; ``run`` returns once those in flight have ended."""
        self._sent = self._options.max_requests

    async def _client(self) -> None:
        while self._sent < self._options.max_requests:
            self._sent += 1
            request = self._request(self._mix())
            engine = self._vllm.engine
            outputs = engine.submit(request)

            try:
                while request.status is RequestStatus.RUNNING and await outputs.get() is not None:
                    pass
            finally:
                engine.close(request)

            if request.status is RequestStatus.RUNNING:  # the engine stopped meanwhile
                self.failed += 1
            else:
                self.completed += 1
                self._ended(request)

    def _mix(self) -> Mix:
        if self.mix is not None:
            return self.mix
        elapsed = self._clock() - self._begun
        mixes = self._options.mixes
        return mixes[int(elapsed / self._options.mix_seconds) % len(mixes)]

    def _request(self, mix: Mix) -> Request:
        options = self._options
        random = self._random
        temperature = random.choices(list(mix), weights=list(mix.values()))[0]
        max_tokens = random.randint(options.min_tokens, options.max_tokens)
        is_long = random.random() < 0.2

        return Request(
            request_id=secrets.token_hex(8),
            sampling_params=SamplingParams(temperature),
            num_prompt_tokens=random.randrange(600, 3000) if is_long else random.randrange(20, 100),
            max_tokens=max_tokens,
            arrival_time=time.time(),
            random=Random(random.getrandbits(64)),
            use_structured_output=random.random() < 0.2,
        )
