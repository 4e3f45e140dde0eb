"""The relay beside nginx and no proxy, in one run: ``python -m benchmarks.proxy``; exits 1 if a bar is missed."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.proxy import nginx

STREAMS = 256
CONNECTIONS = 32
REQUESTS = 40_000
# The bars. Latencies are what a proxy adds to the direct way, in microseconds; costs are multiples of nginx's.
P50_US, P99_US, CHUNK_COST, REQUEST_COST = 100.0, 2000.0, 1.25, 2.0

Result = dict[str, float]


@contextmanager
def child(module: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A helper process that prints its port first."""
    command = [sys.executable, "-m", f"benchmarks.proxy.{module}", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(kind: str, port: int, connections: int, count: int, pid: int | None) -> Result:
    """One load against one port; with ``pid``, its CPU in microseconds per chunk or request."""
    before = cpu_seconds(pid) if pid else 0.0
    command = [sys.executable, "-m", "benchmarks.proxy.load", kind, *map(str, (port, connections, count))]
    result: Result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    done = result["chunks" if kind == "stream" else "requests"]
    result["cpu_us"] = (cpu_seconds(pid) - before) / max(done, 1) * 1e6 if pid else 0.0
    return result


def measure(kind: str, connections: int, count: int, rounds: int) -> dict[str, list[Result]]:
    """``rounds`` times all three ways, taking turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, upstream = stack.enter_context(child("upstream", kind))
        relay, relay_port = stack.enter_context(child("relay_process", upstream))
        master, nginx_port = nginx.start(folder / "nginx", upstream)
        stack.callback(master.wait)
        stack.callback(master.terminate)
        ways = {
            "direct": (upstream, None),
            "nginx": (nginx_port, nginx.worker(master.pid)),
            "relay": (relay_port, relay.pid),
        }
        results: dict[str, list[Result]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, (port, pid) in ways.items():
                results[way].append(load(kind, port, connections, count, pid))
                print(f"{kind} {number + 1}/{rounds} {way}: {results[way][-1]}", file=sys.stderr, flush=True)
        return results


def median(results: list[Result], key: str) -> float:
    return statistics.median(result[key] for result in results)


def added(results: dict[str, list[Result]], way: str, key: str) -> float:
    """The median over the rounds of what this way adds to the direct one of the same round."""
    pairs = zip(results[way], results["direct"], strict=True)
    return statistics.median(result[key] - direct[key] for result, direct in pairs)


def ratio(results: dict[str, list[Result]]) -> float:
    """The median over the rounds of the relay's CPU against nginx's of the same round."""
    pairs = zip(results["relay"], results["nginx"], strict=True)
    return statistics.median(relay["cpu_us"] / reference["cpu_us"] for relay, reference in pairs)


def table(streams: dict[str, list[Result]], requests: dict[str, list[Result]]) -> None:
    print("| way | CPU per chunk, µs | chunk latency P50, µs | P99, µs | lost | CPU per request, µs | requests/s |")
    print("|---|---|---|---|---|---|---|")
    for way, rows in streams.items():
        rate = statistics.median(row["requests"] / row["seconds"] for row in requests[way])
        lost = sum(row["lost"] + row["disordered"] for row in rows)
        cells = (median(rows, "cpu_us"), median(rows, "p50_us"), median(rows, "p99_us"))
        small = median(requests[way], "cpu_us")
        print(f"| {way} | {cells[0]:.1f} | {cells[1]:.0f} | {cells[2]:.0f} | {lost:.0f} | {small:.1f} | {rate:.0f} |")


def verdict(streams: dict[str, list[Result]], requests: dict[str, list[Result]]) -> bool:
    lost = sum(row["lost"] + row["disordered"] for row in streams["relay"]) + sum(
        row["lost"] for row in requests["relay"]
    )
    bars = [
        ("chunks and requests lost", lost, 0.0),
        ("latency added at the median, µs", added(streams, "relay", "p50_us"), P50_US),
        ("latency added at P99, µs", added(streams, "relay", "p99_us"), P99_US),
        ("CPU per chunk, multiple of nginx's", ratio(streams), CHUNK_COST),
        ("CPU per small request, multiple of nginx's", ratio(requests), REQUEST_COST),
    ]
    print("\n| bar | measured | at most | |")
    print("|---|---|---|---|")
    for name, measured, most in bars:
        print(f"| {name} | {measured:.2f} | {most:g} | {'met' if measured <= most else 'MISSED'} |")
    return all(measured <= most for _, measured, most in bars)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 11))
    parser.add_argument("--seconds", type=int, default=20, choices=range(1, 61), help="of each stream")
    options = parser.parse_args()
    streams = measure("stream", STREAMS, options.seconds * 50, options.rounds)
    requests = measure("json", CONNECTIONS, REQUESTS, options.rounds)
    table(streams, requests)
    return 0 if verdict(streams, requests) else 1


if __name__ == "__main__":
    sys.exit(main())
