"""Servers in simulated time, and the same arrivals at each of several ways to use them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from specdec_tools.demo.scheduler import Request, SamplingParams, Scheduler, SimulatorOptions

MEASURED: Final = (0.2, 0.8)  # of the arrivals' time: the rest fills the servers and empties them


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, at ``at`` seconds; ``seed`` decides which of its drafts are accepted."""

    at: float
    temperature: float
    prompt: int
    output: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Requests of two temperatures: the share of those at 0; the others are at 1.

    ``prompt`` and ``output`` are the fewest and the most tokens.
    """

    cold: float
    prompt: tuple[int, int]
    output: tuple[int, int]

    def arrivals(self, rate: float, requests: int, seed: int) -> list[Arrival]:
        """At random times, ``rate`` a second on average."""
        random = Random(seed)
        at = 0.0
        arrivals = []
        for _ in range(requests):
            at += random.expovariate(rate)
            arrivals.append(
                Arrival(
                    at=at,
                    temperature=0.0 if random.random() < self.cold else 1.0,
                    prompt=random.randint(*self.prompt),
                    output=random.randint(*self.output),
                    seed=random.getrandbits(64),
                )
            )
        return arrivals


class Server:
    """One engine. It makes a step after another while it has requests."""

    def __init__(self, options: SimulatorOptions) -> None:
        self._scheduler = Scheduler(options)
        self._at = 0.0
        self.tokens: list[tuple[float, int]] = []  # the end of a step, and what it generated

    @property
    def load(self) -> int:
        """Its waiting and running requests."""
        return self._scheduler.get_num_unfinished_requests()

    def advance(self, until: float) -> None:
        """Makes all steps that begin before ``until``."""
        while self._at < until and self.load:
            self._step()
        if not self.load:
            self._at = max(self._at, until)

    def drain(self) -> None:
        """Makes steps until no request is left."""
        while self.load:
            self._step()

    def send(self, arrival: Arrival, name: int) -> Request:
        """Queues a request; comes after ``advance`` to its time."""
        request = Request(
            request_id=str(name),
            sampling_params=SamplingParams(arrival.temperature),
            num_prompt_tokens=arrival.prompt,
            max_tokens=arrival.output,
            arrival_time=arrival.at,
            random=Random(arrival.seed),
        )
        self._scheduler.now = arrival.at
        self._scheduler.add_request(request)
        return request

    def _step(self) -> None:
        scheduler = self._scheduler
        scheduler.now = self._at
        output = scheduler.schedule()
        self._at += scheduler.duration(output)
        scheduler.now = self._at
        for report in scheduler.update_from_output(output, scheduler.execute(output)).values():
            self.tokens.append((self._at, report.generation_tokens))


@dataclass(frozen=True, slots=True)
class Pool:
    """Servers that are alike, for the requests of some temperatures."""

    servers: int
    options: SimulatorOptions
    temperatures: frozenset[float] = frozenset({0.0, 1.0})


@dataclass(frozen=True, slots=True)
class Served:
    """What the requests of the measured time got: seconds, and tokens a second of all servers."""

    per_token: dict[float, list[float]] = field(default_factory=dict)  # by temperature
    first_token: list[float] = field(default_factory=list)
    tokens_per_second: float = 0.0


def chance(rate: float, tokens: int) -> float:
    """The probability with which a draft token is accepted after an accepted one.

    ``rate`` is the acceptance rate of drafts of so many ``tokens``. Found by bisection.
    """
    low = 0.0
    high = 1.0
    for _ in range(50):
        middle = (low + high) / 2
        accepted = sum(middle**position for position in range(1, tokens + 1)) / tokens
        if accepted < rate:
            low = middle
        else:
            high = middle
    return low


def capacity(options: SimulatorOptions, arrivals: Sequence[Arrival]) -> float:
    """Requests a second that one server can do, if none ever waits for another to arrive."""
    server = Server(options)
    for name, arrival in enumerate(arrivals):
        server.send(replace(arrival, at=0.0), name)
    server.drain()

    end = server.tokens[-1][0]
    tokens_per_request = sum(count for _, count in server.tokens) / len(arrivals)
    return _rate([server], *(share * end for share in MEASURED)) / tokens_per_request


def serve(pools: Sequence[Pool], arrivals: Sequence[Arrival]) -> Served:
    """Sends each request to the least loaded server of its pool."""
    groups = [([Server(pool.options) for _ in range(pool.servers)], pool) for pool in pools]
    servers = [server for group, _ in groups for server in group]

    requests = []
    for name, arrival in enumerate(arrivals):
        for server in servers:
            server.advance(arrival.at)
        group = next(group for group, pool in groups if arrival.temperature in pool.temperatures)
        server = min(group, key=lambda server: server.load)
        requests.append(server.send(arrival, name))
    for server in servers:
        server.drain()

    return _served(requests, servers, arrivals[-1].at)


def _served(requests: Iterable[Request], servers: Iterable[Server], end: float) -> Served:
    start, stop = (share * end for share in MEASURED)
    per_token: dict[float, list[float]] = {}
    first_token = []
    for request in requests:
        if start <= request.arrived < stop:
            temperature = request.sampling_params.temperature
            per_token.setdefault(temperature, []).append(request.time_per_output_token)
            first_token.append(request.first_token - request.arrived)

    return Served(per_token, first_token, _rate(servers, start, stop))


def _rate(servers: Iterable[Server], start: float, stop: float) -> float:
    """The tokens a second that the servers generate from ``start`` to ``stop``."""
    steps = [step for server in servers for step in server.tokens]
    return sum(count for at, count in steps if start <= at < stop) / (stop - start)
