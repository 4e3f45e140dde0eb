"""The proxy as ``run`` starts it, beside nginx, a bare byte relay and no proxy: ``python -m benchmarks.proxy``.

Prints two tables; exits 1 if a bar is missed.
"""

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
from benchmarks.table import Row, report

STREAMS = 128
CONNECTIONS = 32
REQUESTS = 16_000
WAYS = {
    "direct": "no proxy",
    "nginx": "nginx",
    "bytes": "byte relay on uvloop",
    "json": "the same, decoding bodies",
    "proxy": "the sidecar",
    "asking": "the sidecar, usage asked for",
}
# The bars, multiples of a reference's figures in the same run.
CHUNK_OF_BYTES, REQUEST_OF_JSON, P50_OF_BYTES, P99_OF_BYTES = 3.0, 10.0, 4.0, 6.0
ASKING_P50_OF_PROXY = 1.5

Result = dict[str, float]
Results = dict[str, list[Result]]  # by way, one a round


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


@contextmanager
def sidecar(upstream: int, *, ask: bool = False) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The product: observing, polling once a second, exporting; ``ask``: for usage."""
    port = nginx.free_port()
    settings = {
        "SPECDEC_VLLM_URL": f"http://127.0.0.1:{upstream}",
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_REQUESTS__SOURCE": "proxy",
        "SPECDEC_REQUESTS__ASK_USAGE": "any" if ask else "false",
        "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{port}",
    }
    command = [sys.executable, "-m", "sidecar", "run"]
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **settings}
    ) as process:
        try:
            nginx.wait_for(port)
            yield process, port
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


def measure(kind: str, connections: int, count: int, rounds: int) -> Results:
    """``rounds`` times all ways, in turn."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, upstream = stack.enter_context(child("upstream", kind))
        relay, relay_port = stack.enter_context(child("byte_relay", upstream))
        decoding, decoding_port = stack.enter_context(child("byte_relay", upstream, "json"))
        proxy, proxy_port = stack.enter_context(sidecar(upstream))
        asking, asking_port = stack.enter_context(sidecar(upstream, ask=True))
        master, nginx_port = nginx.start(folder / "nginx", upstream)
        stack.callback(master.wait)
        stack.callback(master.terminate)
        ways: dict[str, tuple[int, int | None]] = {
            "direct": (upstream, None),
            "nginx": (nginx_port, nginx.worker(master.pid)),
            "bytes": (relay_port, relay.pid),
            "json": (decoding_port, decoding.pid),
            "proxy": (proxy_port, proxy.pid),
            "asking": (asking_port, asking.pid),
        }
        results: Results = {way: [] for way in WAYS}
        for number in range(rounds):
            for way, (port, pid) in ways.items():
                results[way].append(load(kind, port, connections, count, pid))
                print(f"{kind} {number + 1}/{rounds} {way}: {results[way][-1]}", file=sys.stderr, flush=True)
        return results


def median(results: Results, way: str, key: str) -> float:
    return statistics.median(result[key] for result in results[way])


def ratio(results: Results, reference: str, key: str, *, way: str = "proxy") -> float:
    """The median over the rounds of a way's figure, divided by the reference's of the same round."""
    pairs = zip(results[way], results[reference], strict=True)
    return statistics.median(ours[key] / other[key] for ours, other in pairs)


def lost(results: Results, way: str) -> float:
    return sum(row["lost"] + row.get("disordered", 0) for row in results[way])


def overview(streams: Results, requests: Results) -> None:
    print("| way | CPU per chunk, µs | chunk latency P50, µs | P99, µs | lost | CPU per request, µs | requests/s |")
    print("|---|---|---|---|---|---|---|")
    for way, name in WAYS.items():
        rate = statistics.median(row["requests"] / row["seconds"] for row in requests[way])
        print(
            f"| {name} | {median(streams, way, 'cpu_us'):.1f} | {median(streams, way, 'p50_us'):.0f} "
            f"| {median(streams, way, 'p99_us'):.0f} | {lost(streams, way) + lost(requests, way):.0f} "
            f"| {median(requests, way, 'cpu_us'):.1f} | {rate:.0f} |"
        )
    print()


def rows(streams: Results, requests: Results) -> Iterator[Row]:
    missing = sum(lost(results, way) for results in (streams, requests) for way in ("proxy", "asking"))
    yield Row("chunks and requests lost", "", missing, at_most=0)
    for what, results, reference, at_most in (
        ("CPU per chunk, multiple of the byte relay's", streams, "bytes", CHUNK_OF_BYTES),
        ("CPU per small request, multiple of the decoding relay's", requests, "json", REQUEST_OF_JSON),
    ):
        ours, theirs = median(results, "proxy", "cpu_us"), median(results, reference, "cpu_us")
        measured = f"{ours:.1f} ÷ {theirs:.1f} µs; {ratio(results, 'nginx', 'cpu_us'):.1f} times nginx"
        yield Row(what, measured, ratio(results, reference, "cpu_us"), at_most=at_most)
    for quantile, at_most in (("p50_us", P50_OF_BYTES), ("p99_us", P99_OF_BYTES)):
        measured = f"{median(streams, 'proxy', quantile):.0f} ÷ {median(streams, 'bytes', quantile):.0f} µs"
        what = f"latency of a chunk at {quantile[:3].upper()}, multiple of the byte relay's"
        yield Row(what, measured, ratio(streams, "bytes", quantile), at_most=at_most)
    asked, unasked = median(streams, "asking", "p50_us"), median(streams, "proxy", "p50_us")
    cpu = f"CPU {median(streams, 'asking', 'cpu_us'):.1f} ÷ {median(streams, 'proxy', 'cpu_us'):.1f} µs"
    yield Row(
        "latency of a chunk at P50, usage asked for ÷ not",
        f"{asked:.0f} ÷ {unasked:.0f} µs; {cpu}",
        ratio(streams, "proxy", "p50_us", way="asking"),
        at_most=ASKING_P50_OF_PROXY,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 11))
    parser.add_argument("--seconds", type=int, default=10, choices=range(1, 61), help="of each stream")
    options = parser.parse_args()
    streams = measure("stream", STREAMS, options.seconds * 50, options.rounds)
    requests = measure("json", CONNECTIONS, REQUESTS, options.rounds)
    overview(streams, requests)
    return report(rows(streams, requests))


if __name__ == "__main__":
    sys.exit(main())
