"""``python -m benchmarks.speedup``: every cell of K x load x temperature on the lab, plain and speculating in turn.

All servers are up at the same time and get traffic one after the other, cell by cell and round by round, so that a
drift of the machine affects all. The curve of plain step times is that of the plain server's own cells. It prints a
Markdown table, and exits with 1 if a speedup is off the clients' by more than 0.07. It takes (K's + 1) x loads x
(temperatures + 1) x rounds x seconds, and half a minute for each start.

With ``--synthetic`` vLLM accepts draft tokens at random, so that a step gives these numbers of tokens on average: the
same draft model goes from loss to gain.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.speedup.cells import Cell, Seen, Server, seconds_per_token
from sidecar.analysis.plain_curve import PlainCurve, fit_undrafted
from sidecar.analysis.plain_decoding import PlainDecoding
from sidecar.analysis.speedup import Speedup
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.analysis.verdict import Estimate, Evidence, VerdictThresholds, judge
from sidecar.recording.recording import Scrape
from sidecar.recording.replay import plain_curves, replay_events

_BAR = 0.07
_START_SECONDS = 300
_TITLES = (
    "K",
    "at once",
    "T",
    "acceptance",
    "plain, ms/token",
    "speculating",
    "clients' speedup",
    "sidecar's",
    "standard error",
    "off",
    "off, by the plain times of this cell",
    "verdict",
)


def main() -> int:
    """Measures and prints; returns the exit code."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left behind
    return asyncio.run(_measure(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", type=Path, required=True, help="the folder with the lab's script `serve`")
    parser.add_argument("--method", default="draft_model", help="draft_model (default) or ngram")
    parser.add_argument("--tokens", type=_integers, default=(1, 3, 5), metavar="K,K")
    parser.add_argument("--loads", type=_integers, default=(1, 4, 8, 16), metavar="N,N")
    parser.add_argument("--temperatures", type=_floats, default=(0.2, 0.6, 1.2), metavar="T,T")
    parser.add_argument("--seconds", type=float, default=35.0, help="of each cell, server and round (default: 35)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--port", type=int, default=8190, help="and the next ones")
    parser.add_argument("--synthetic", type=_floats, default=(), metavar="L,L", help="acceptance lengths to force")
    parser.add_argument("--option", action="append", default=[], help="of the speculating servers; repeatable")
    return parser.parse_args()


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(","))


async def _measure(arguments: argparse.Namespace) -> int:
    sets = list(dict.fromkeys([*((one,) for one in arguments.temperatures), arguments.temperatures]))
    cells = [Cell(at_once, temperatures) for at_once in arguments.loads for temperatures in sets]
    variants = list(_variants(arguments))
    seen: list[tuple[Cell, list[Seen]]] = []
    with ExitStack() as stack:
        plugin = stack.enter_context(_plugin()) if arguments.synthetic else {}
        urls = [stack.enter_context(_serving(arguments.lab, "off", arguments.port, {}))]
        for port, one in enumerate(variants, arguments.port + 1):
            options = [*one.options, *arguments.option]
            urls.append(
                stack.enter_context(
                    _serving(arguments.lab, one.method, port, {"K": str(one.tokens), **plugin}, options)
                )
            )
        for url in urls:
            await _ready(url)
        servers = [Server(url, 1) for url in urls]
        for server in servers:
            await server.run(cells[-1], 3.0, Seen())  # warm it up
        try:
            for number in range(arguments.rounds):
                for cell in cells:
                    print(f"round {number + 1}: {cell}", file=sys.stderr, flush=True)
                    seen.append((cell, [Seen() for _ in servers]))
                    for server, one_seen in zip(servers, seen[-1][1], strict=True):
                        await server.run(cell, arguments.seconds, one_seen)
        finally:  # also report what was measured if it is stopped
            off = _report(variants, [one for one in seen if all(server.records for server in one[1])])
    print(f"\n{off} cells off by more than {_BAR}" if off else f"\nno cell off by more than {_BAR}")
    return 1 if off else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """A way of speculating: a server."""

    name: str
    method: str
    tokens: int
    options: tuple[str, ...] = ()


def _variants(arguments: argparse.Namespace) -> Iterator[_Variant]:
    for tokens in arguments.tokens:
        if not arguments.synthetic:
            yield _Variant(name=str(tokens), method=arguments.method, tokens=tokens)
        for length in arguments.synthetic:
            config = {
                "method": "draft_model",
                "model": os.environ.get("LAB", "/tmp/vllm-lab") + "/draft",
                "num_speculative_tokens": tokens,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": length,
            }
            yield _Variant(
                name=f"{tokens}, length {length:g}",
                method="draft_model",
                tokens=tokens,
                options=("--speculative-config", json.dumps(config)),
            )


@contextmanager
def _plugin() -> Iterator[dict[str, str]]:
    """The environment in which vLLM finds and loads ``synthetic_sampling``."""
    with TemporaryDirectory() as folder:
        info = Path(folder, "synthetic_sampling-1.0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: synthetic-sampling\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nsynthetic_sampling = synthetic_sampling:register\n"
        )
        yield {"PYTHONPATH": f"{folder}:{Path(__file__).parent}"}


def _report(variants: Sequence[_Variant], seen: Sequence[tuple[Cell, Sequence[Seen]]]) -> int:
    """Prints a table of all that was measured; returns how many cells are off."""
    print(f"| {' | '.join(_TITLES)} |\n{'|---' * len(_TITLES)}|", flush=True)
    curves = plain_curves(scrape for _, (plain, *_) in seen for scrape in plain.scrapes)
    off = 0
    for index, variant in enumerate(variants, 1):
        for cell in dict.fromkeys(cell for cell, _ in seen):
            rounds = [(one[0], one[index]) for other, one in seen if other == cell]
            off += _row(variant.name, cell, rounds, curves)
        scrapes = [scrape for _, one in seen for scrape in one[index].scrapes]
        _print_undrafted(scrapes, curves)
    return off


def _row(name: str, cell: Cell, rounds: Sequence[tuple[Seen, Seen]], curves: Mapping[str, PlainCurve]) -> bool:
    """Prints one cell; whether it is off."""
    plain = seconds_per_token(record for one, _ in rounds for record in one.records)
    speculating = seconds_per_token(record for _, one in rounds for record in one.records)
    truth = plain / speculating
    row = [name, cell.at_once, "mixed" if len(cell.temperatures) > 1 else cell.temperatures[0]]
    row += [f"{_acceptance(rounds):.2f}", f"{plain * 1000:.1f}", f"{speculating * 1000:.1f}", f"{truth:.2f}"]
    found = _over_rounds([_speedup(cell, one, curves) for _, one in rounds])
    # With the plain times of this very cell: what is left is the method's error, without the machine's drift.
    own = _over_rounds([_speedup(cell, one, plain_curves(plain.scrapes)) for plain, one in rounds])
    if found is None:
        row += ["none", "", "", "", ""]
    else:
        verdict = judge(Evidence(drafts=1e6, draft_tokens=1e6, speedup=found), VerdictThresholds()).verdict
        row += [f"{found.value:.2f}", f"{found.error:.2f}", f"{found.value - truth:+.3f}"]
        row += [f"{own.value - truth:+.3f}" if own else "none", verdict]
    print(f"| {' | '.join(map(str, row))} |", flush=True)
    return found is None or abs(found.value - truth) > _BAR


def _over_rounds(found: Sequence[Speedup | None]) -> Estimate | None:
    known = [one for one in found if one is not None]
    if not known:
        return None
    ratio = sum(one.plain_seconds * one.tokens for one in known) / sum(one.actual_seconds * one.tokens for one in known)
    return Estimate(ratio, max(one.error for one in known))


def _print_undrafted(scrapes: Sequence[Scrape], curves: Mapping[str, PlainCurve]) -> None:
    """The plain step times that the engine's own steps without drafts give, beside the measured ones."""
    decoding = PlainDecoding()
    for scrape in scrapes:
        if scrape.snapshot is not None:
            decoding.scraped(scrape.at, scrape.snapshot)
    for model, periods in decoding.periods.items():
        own, idle = fit_undrafted(periods), sum(not one.draft_tokens for one in periods)
        print(f"\nundrafted, {idle} of {len(periods)} periods without drafts: {'none' if own is None else ''}")
        for load, seconds, error in zip(own.running, own.seconds, own.errors, strict=True) if own else ():
            measured = curves[model].at(load)
            beside = f"{measured.seconds * 1000:.1f}" if measured else "not measured"
            print(f"  {load:.1f} running: {seconds * 1000:.1f} ± {error * 1000:.1f} ms; baseline: {beside}")
        print(flush=True)


def _speedup(cell: Cell, seen: Seen, curves: Mapping[str, PlainCurve]) -> Speedup | None:
    """For all requests together, or for a cell's only temperature if enough of its requests ended in time."""
    buckets = TemperatureBuckets()
    result = replay_events(seen.scrapes, seen.records, infer=False, buckets=buckets, curves=curves)
    if result.speed is None:
        return None
    whole, label = result.speed.whole.speedup, buckets.label(cell.temperatures[0])
    if len(cell.temperatures) > 1 or label not in result.speed.temperatures:
        return whole
    return result.speed.temperatures[label].speedup or whole


def _acceptance(rounds: Sequence[tuple[Seen, Seen]]) -> float:
    known = [one.acceptance for _, seen in rounds for one in seen.records if one.acceptance is not None]
    drafted = sum(one.draft_tokens for one in known)
    return sum(one.accepted_tokens for one in known) / drafted if drafted else 0.0


@contextmanager
def _serving(
    lab: Path, method: str, port: int, environment: Mapping[str, str], options: Sequence[str] = ()
) -> Iterator[str]:
    process = subprocess.Popen(
        [str(lab / "serve"), method, *options],
        env={"TARGET": "target-large", **os.environ, "PORT": str(port), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


async def _ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(_START_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
