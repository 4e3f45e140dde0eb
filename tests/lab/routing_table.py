"""Does routing by temperature pay on a real vLLM? ``python -m tests.lab.routing_table FILE``.

It needs ``make lab`` to have run, 15 GB of memory, and two cores: each server has one of them.

The same arrivals go to three ways to use two servers in turn: both speculate with three greedy
draft tokens, both sample their drafts, or one speculates for temperature 0 and one is plain for 1.
The last one has no second case, because at temperature 0 sampled drafts are greedy. There are two
loads: a low one, and one close to what two servers with greedy drafts can do, which is measured
first.

FILE gets a JSON line for each block. Further arguments are the seeds of the arrivals, one for each
round (default: 0 to 2). Where FILE has rounds already, the load stays the same, and the tables are
of all. Three rounds take twelve minutes.

The simulation of ``benchmarks.routing`` gets the same requests, at the same share of what its own
servers can do, but with longer prompts.
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from random import Random

from benchmarks.routing.fleet import MEASURED, Arrival, Pool, Served, capacity, serve
from benchmarks.routing.machines import COLD, HOT, LAB_CPU
from benchmarks.routing.results import (
    HEADER,
    Result,
    cells,
    high_change,
    relative_change,
    result,
)
from sidecar.wording.numbers import markdown
from specdec_tools.measuring.client import Client, Sample
from specdec_tools.measuring.workload import RequestOptions
from tests.lab.conftest import Lab

TARGET = ("--target", "target-large")
PLAIN = ("off", *TARGET)
GREEDY = ("draft_model", "--tokens", "3", *TARGET)
SAMPLED = (*GREEDY, "--speculative", '{"draft_sample_method": "probabilistic"}')
DRAFTS = {draft.name: draft for draft in LAB_CPU.drafts}

GREEDY_DRAFTS = "2 speculating, greedy drafts"
SAMPLED_DRAFTS = "2 speculating, sampled drafts"
SPLIT = "1 speculating for T 0, 1 plain"
WAYS = (GREEDY_DRAFTS, SAMPLED_DRAFTS, SPLIT)

OPTIONS = RequestOptions(endpoint="completions", extra_body={"ignore_eos": True})
# Each is one token of the lab's tokenizer.
WORDS = "decoding drafts a few tokens with small model and verifies them the large one".split()  # noqa: SIM905 - words
# One core takes ten times as long for a token of a prompt as the law says.
SHORTER_PROMPTS = 10
CAPACITY_REQUESTS = 60
ROW = ("load", "seed", "servers", "accepted: T 0", "T 1", "ms a token: T 0", "T 1", "P99")
CHANGES = {
    "ms a token: T 0": attrgetter("cold"),
    "T 1": attrgetter("hot"),
    "P50": attrgetter("median"),
    "P99": attrgetter("high"),
    "tokens/s": attrgetter("tokens_per_second"),
}


@dataclass(frozen=True)
class Load:
    """Its share of what two speculating servers can do, and for how long requests arrive."""

    share: float
    seconds: float

    def requests(self, capacity):
        """How many arrive, if each server can do ``capacity`` a second."""
        return round(2 * self.share * capacity * self.seconds)

    def arrivals(self, capacity, requests, seed):
        """So many requests, which are the same at any capacity but for when they arrive."""
        return LAB_CPU.mix.arrivals(2 * self.share * capacity, requests, seed)


LOADS = {"low": Load(0.2, 25.0), "high": Load(0.85, 30.0)}


@dataclass(frozen=True)
class Reply:
    """What a request got; ``first`` is when its first token came, in seconds of its block."""

    arrival: Arrival
    first: float
    sample: Sample

    def tokens(self, start, stop):
        """Those from ``start`` to ``stop``, if they came evenly."""
        seconds = (self.arrival.output - 1) * self.sample.tpot
        inside = min(self.first + seconds, stop) - max(self.first, start)
        return self.arrival.output * max(inside, 0.0) / seconds


class Server:
    """A vLLM with one core, and how many requests it has not finished."""

    def __init__(self, arguments, core):
        self.lab = Lab(*arguments, core=core)
        self.client = Client(self.lab.url, OPTIONS)
        self.load = 0

    async def ask(self, arrival, begun):
        """What a request got, in a block that began at ``begun``."""
        words = Random(arrival.seed).choices(WORDS, k=arrival.prompt // SHORTER_PROMPTS)
        prompt = "".join(f" {word}" for word in words)
        asked = asyncio.get_running_loop().time()

        self.load += 1
        sample = await self.client.ask(prompt, arrival.temperature, max_tokens=arrival.output)
        self.load -= 1

        assert sample is not None, self.client.last_fault
        assert sample.tokens == arrival.output
        return Reply(arrival, asked - begun + sample.ttft, sample)


@asynccontextmanager
async def serving(*servers):
    """They serve until the end."""
    try:
        await asyncio.gather(*(server.lab.start() for server in servers))
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server.client)
                await server.client.connect("the")
            yield
    finally:
        for server in servers:
            server.lab.kill()


async def sent(pools, arrivals):
    """Sends each request at its time to the least loaded server of its temperature's pool."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for arrival in arrivals:
            await asyncio.sleep(begun + arrival.at - loop.time())
            server = min(pools[arrival.temperature], key=attrgetter("load"))
            tasks.append(group.create_task(server.ask(arrival, begun)))

    return [task.result() for task in tasks]


def rate(replies, start, stop):
    """Tokens a second."""
    return sum(reply.tokens(start, stop) for reply in replies) / (stop - start)


def served(replies):
    """As ``fleet.serve`` has it: of the requests in the middle of the time."""
    end = max(reply.arrival.at for reply in replies)
    start, stop = (share * end for share in MEASURED)
    per_token = {0.0: [], 1.0: []}
    first_token = []
    for reply in replies:
        arrival = reply.arrival
        if start <= arrival.at < stop:
            per_token[arrival.temperature].append(reply.sample.tpot)
            first_token.append(reply.first - arrival.at)

    return Served(per_token, first_token, rate(replies, start, stop))


async def measured_capacity(servers):
    """Requests a second that one of these can do, if none ever waits for another to arrive."""
    arrivals = [replace(one, at=0.0) for one in LAB_CPU.mix.arrivals(1.0, CAPACITY_REQUESTS, 99)]
    replies = await sent({0.0: servers, 1.0: servers}, arrivals)

    end = max(reply.first for reply in replies)
    tokens = rate(replies, *(share * end for share in MEASURED))
    per_request = sum(one.output for one in arrivals) / len(arrivals)
    return tokens / per_request / len(servers)


def acceptance(replies, temperature):
    """The share of draft tokens that were accepted, as a column; "-" without any."""
    samples = [one.sample for one in replies if one.arrival.temperature == temperature]
    drafted = sum(sample.draft_tokens for sample in samples)
    accepted = sum(sample.accepted_tokens for sample in samples)
    return f"{accepted / drafted:.0%}" if drafted else "-"


class Record:
    """What was measured, in a file."""

    def __init__(self, path):
        self._path = path
        self.capacity = None
        self._results = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self._keep(json.loads(line))

    def add(self, **line):
        """A capacity, or a block's result with its load, way and seed."""
        self._keep(line)
        with self._path.open("a") as file:
            print(json.dumps(line), file=file)

    def _keep(self, line):
        if "capacity" in line:
            self.capacity = line["capacity"]
            return
        by_seed = self._results.setdefault((line["load"], line["way"]), {})
        by_seed[line["seed"]] = Result(**line["result"])

    @property
    def seeds(self):
        """Those of which every block is there."""
        blocks = [set(self._results.get((load, way), ())) for load in LOADS for way in WAYS]
        return sorted(set.intersection(*blocks))

    def of(self, load, way):
        """The results of the seeds, in order."""
        return [self._results[load, way][seed] for seed in self.seeds]


async def measure(record, seeds):
    """Adds rounds to the record."""
    greedy = [Server(GREEDY, core=0), Server(GREEDY, core=1)]
    sampled = [Server(SAMPLED, core=0), Server(SAMPLED, core=1)]
    plain = Server(PLAIN, core=1)
    pools = {
        GREEDY_DRAFTS: {0.0: greedy, 1.0: greedy},
        SAMPLED_DRAFTS: {0.0: sampled, 1.0: sampled},
        SPLIT: {0.0: greedy[:1], 1.0: [plain]},
    }
    async with serving(*greedy, *sampled, plain):
        if record.capacity is None:
            record.add(capacity=await measured_capacity(greedy))
        print(f"{record.capacity:.2f} requests a second of a server with greedy drafts\n")
        print("\n".join(markdown(ROW, [])), flush=True)

        for seed in seeds:
            for load, wanted in LOADS.items():
                requests = wanted.requests(record.capacity)
                arrivals = wanted.arrivals(record.capacity, requests, seed)
                for way in in_turn(seed):
                    replies = await sent(pools[way], arrivals)
                    found = result(served(replies))
                    record.add(load=load, way=way, seed=seed, result=asdict(found))
                    print_row(load, seed, way, replies, found)


def in_turn(seed):
    """The ways to use the servers, beginning with another one for the next seed."""
    first = seed % len(WAYS)
    return (*WAYS[first:], *WAYS[:first])


def print_row(load, seed, way, replies, found):
    """A block's."""
    accepted = (acceptance(replies, temperature) for temperature in (0.0, 1.0))
    times = (f"{value:.1f}" for value in (found.cold, found.hot, found.high))
    print(f"| {' | '.join((load, str(seed), way, *accepted, *times))} |", flush=True)


def simulated(record):
    """By load and way: what simulated servers give to the same requests, in order of the seeds."""
    greedy = LAB_CPU.options(DRAFTS["greedy"])
    sampled = LAB_CPU.options(DRAFTS["sampled"])
    plain = LAB_CPU.options(None)
    most = capacity(greedy, LAB_CPU.mix.arrivals(1.0, LAB_CPU.requests, seed=0))

    pools = {
        GREEDY_DRAFTS: (Pool(2, greedy),),
        SAMPLED_DRAFTS: (Pool(2, sampled),),
        SPLIT: (Pool(1, greedy, COLD), Pool(1, plain, HOT)),
    }
    return {
        (load, way): [
            result(serve(used, wanted.arrivals(most, wanted.requests(record.capacity), seed)))
            for seed in record.seeds
        ]
        for load, wanted in LOADS.items()
        for way, used in pools.items()
    }


def print_tables(record):
    """What was measured, and what splitting the servers changes, beside the simulation."""
    measured = {(load, way): record.of(load, way) for load in LOADS for way in WAYS}
    print(f"\n{len(record.seeds)} rounds\n")
    rows = []
    for (load, way), results in measured.items():
        before = measured[load, GREEDY_DRAFTS]
        change = "" if way == GREEDY_DRAFTS else high_change(results, before)
        rows.append((load, way, *cells(results, change=change)))
    print("\n".join(markdown(HEADER, rows)))

    law = simulated(record)
    rows = [
        (load, others, name, *changes(found[load, SPLIT], found[load, others]))
        for load in LOADS
        for others in (GREEDY_DRAFTS, SAMPLED_DRAFTS)
        for name, found in {"lab": measured, "simulated": law}.items()
    ]
    print("\nThe split servers against those that all speculate:\n")
    print("\n".join(markdown(("load", "against", "", *CHANGES), rows)))


def changes(results, baseline):
    """The columns of CHANGES."""
    for value in CHANGES.values():
        yield relative_change([value(one) for one in results], [value(one) for one in baseline])


def main(file, *seeds):
    """Measures and prints."""
    record = Record(Path(file))
    asyncio.run(measure(record, [int(seed) for seed in seeds or "012"]))
    print_tables(record)


if __name__ == "__main__":
    main(*sys.argv[1:])
