"""``python -m benchmarks.speedup``: every cell of K x load x temperature on the lab, plain and speculating in turn.

All servers are up at the same time, with the plug-in, and get traffic one after the other, cell by cell and round by
round, so that a drift of the machine affects all. The curve of plain step times is that of the plain server's own
cells. What each server said goes through the sidecar's own state. It prints a Markdown table, and exits with 1 if a
speedup is off the clients' by more than 0.07. It takes (K's + 1) x loads x (temperatures + 1) x rounds x seconds, and
half a minute for each start.

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
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.speedup.cells import Cell, Seen, Server, seconds_per_token
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speedup import Speedup
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.recording.replay import plain_curves, replay_events
from sidecar.settings import Settings, load_settings
from sidecar.settings.baselines import PlainStepTimes

_BAR = 0.07
_START_SECONDS = 300
_TITLES = (
    *("K", "at once", "T", "acceptance", "plain, ms/token", "speculating", "clients' speedup", "sidecar's"),
    *("standard error", "off", "off, by the plain times of this cell", "verdict"),
)
_Round = Sequence[Seen]  # of each server
_Curves = Mapping[str, PlainCurve]  # by model


def main() -> int:
    """Measures and prints; returns the exit code."""
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left behind
    return asyncio.run(_measure(parser.parse_args()))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """A way of speculating, or none: a server."""

    name: str
    method: str
    tokens: int = 0
    options: tuple[str, ...] = ()


def _variants(arguments: argparse.Namespace) -> Iterator[_Variant]:
    """The plain one first."""
    yield _Variant(name="plain", method="off")
    more = tuple(arguments.option)
    for tokens in arguments.tokens:
        if not arguments.synthetic:
            yield _Variant(name=str(tokens), method=arguments.method, tokens=tokens, options=more)
        for length in arguments.synthetic:
            config = {
                "method": "draft_model",
                "model": os.environ.get("LAB", "/tmp/vllm-lab") + "/draft",
                "num_speculative_tokens": tokens,
                "rejection_sample_method": "synthetic",
                "synthetic_acceptance_length": length,
            }
            options = ("--speculative-config", json.dumps(config), *more)
            yield _Variant(name=f"{tokens}, length {length:g}", method="draft_model", tokens=tokens, options=options)


async def _measure(arguments: argparse.Namespace) -> int:
    sets = list(dict.fromkeys([*((one,) for one in arguments.temperatures), arguments.temperatures]))
    cells = [Cell(at_once, temperatures) for at_once in arguments.loads for temperatures in sets]
    variants, found = list(_variants(arguments)), list[tuple[Cell, _Round]]()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="speedup-")))
        path = _plugins(folder, synthetic=bool(arguments.synthetic))
        servers = []
        for port, variant in enumerate(variants, arguments.port):
            url, socket = f"http://127.0.0.1:{port}", folder / f"{port}.sock"
            servers.append(await stack.enter_async_context(Server(url, socket, seed=1)))
            environment = {"PORT": str(port), "PYTHONPATH": path, "SPECDEC_PLUGIN__SOCKET": str(socket)}
            stack.enter_context(_serving(arguments.lab, variant, environment))
        for port, server in enumerate(servers, arguments.port):
            await _ready(f"http://127.0.0.1:{port}")
            await server.connect()
            await server.run(cells[-1], 3.0)  # warm it up
        try:
            for number in range(arguments.rounds):
                for cell in cells:
                    print(f"round {number + 1}: {cell.at_once} at once, T {cell.name}", file=sys.stderr, flush=True)
                    found.append((cell, [await server.run(cell, arguments.seconds) for server in servers]))
        finally:  # also report what was measured if it is stopped
            off = _report(variants, servers, found)
    print(f"\n{off} cells off by more than {_BAR}" if off else f"\nno cell off by more than {_BAR}")
    return 1 if off else 0


def _plugins(folder: Path, *, synthetic: bool) -> str:
    """The PYTHONPATH with the sidecar's plug-in and, if asked for, ``synthetic_sampling``."""
    subprocess.run([sys.executable, "-m", "sidecar", "plugin", str(folder)], check=True, stdout=subprocess.DEVNULL)
    if synthetic:
        info = folder / "synthetic_sampling-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: synthetic-sampling\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nsynthetic_sampling = synthetic_sampling:register\n"
        )
    return f"{folder}:{Path(__file__).parent}"


@contextmanager
def _serving(lab: Path, variant: _Variant, environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        [str(lab / "serve"), variant.method, *variant.options],
        env={"TARGET": "target-large", "K": str(variant.tokens), **os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
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


def _report(variants: Sequence[_Variant], servers: Sequence[Server], found: Sequence[tuple[Cell, _Round]]) -> int:
    """Prints a table of all that was measured; returns how many cells are off."""
    print(f"| {' | '.join(_TITLES)} |\n{'|---' * len(_TITLES)}|", flush=True)
    curves = _curves(servers[0], [seen[0] for _, seen in found])
    off = 0
    for number, variant in enumerate(variants[1:], 1):
        for cell in dict.fromkeys(cell for cell, _ in found):
            rounds = [(seen[0], seen[number]) for other, seen in found if other == cell]
            off += _row(variant.name, cell, rounds, (servers[0], servers[number]), curves)
    return off


def _curves(plain: Server, seen: Sequence[Seen]) -> dict[str, PlainCurve]:
    """Plain step times by what the plain server did in these cells."""
    spans = [(one.begun, one.ended) for one in seen]
    return plain_curves(one for one in plain.scrapes if any(begun <= one.at <= ended for begun, ended in spans))


def _row(
    name: str, cell: Cell, rounds: Sequence[tuple[Seen, Seen]], servers: tuple[Server, Server], curves: _Curves
) -> bool:
    """Prints one cell; whether it is off."""
    plain, server = servers
    before = seconds_per_token(sample for one, _ in rounds for sample in one.samples)
    now = seconds_per_token(sample for _, one in rounds for sample in one.samples)
    truth = before / now
    acceptance = sum(one.acceptance for _, one in rounds) / len(rounds)
    row = [name, str(cell.at_once), cell.name, f"{acceptance:.2f}", f"{before * 1000:.1f}", f"{now * 1000:.1f}"]
    models = [_replayed(server, one, curves) for _, one in rounds]
    speedup = _over_rounds([_speedup(cell, model) for model in models])
    # With the plain times of this very cell: what is left is the method's error, without the machine's drift.
    own = _over_rounds([_speedup(cell, _replayed(server, one, _curves(plain, [first]))) for first, one in rounds])
    row += [f"{truth:.2f}"]
    if speedup is None:
        withheld = next((one.speed.withheld for one in models if one is not None and one.speed is not None), None)
        row += [withheld or "none", "", "", "", ""]
    else:
        ratio, error = speedup
        row += [f"{ratio:.2f}", f"{error:.2f}", f"{ratio - truth:+.3f}"]
        row += [f"{own[0] - truth:+.3f}" if own else "none", models[-1].judgement.verdict if models[-1] else ""]
    print(f"| {' | '.join(row)} |", flush=True)
    return speedup is None or abs(speedup[0] - truth) > _BAR


def _replayed(server: Server, seen: Seen, curves: _Curves) -> ModelReport | None:
    """What a sidecar that had watched the server from its start would have said at the cell's end, of the cell."""
    scrapes = [one for one in server.scrapes if one.at <= seen.ended]
    heard = [one for one in server.heard if one.at <= seen.ended]
    report = replay_events(scrapes, heard, _settings(curves, seen.ended - seen.begun))
    return report.models[0] if report.models else None


def _settings(curves: _Curves, window: float) -> Settings:
    steps = {
        model: PlainStepTimes(
            running=curve.running,
            seconds=curve.seconds,
            errors=curve.errors,
            deviations=curve.deviations,
            prompt_share=curve.prompt_share,
            prompt_seconds=curve.prompt_seconds,
        )
        for model, curve in curves.items()
    }
    gates = {"SPECDEC_THRESHOLDS__MIN_REQUESTS": "1", "SPECDEC_THRESHOLDS__MIN_DRAFTS_PER_SECOND": "0"}
    return load_settings(None, gates).model_copy(update={"plain_steps": steps, "latency_window": window})


def _speedup(cell: Cell, model: ModelReport | None) -> Speedup | None:
    """For all requests together, or for a cell's only temperature if enough was decoded at it."""
    if model is None or model.speed is None:
        return None
    if len(cell.temperatures) == 1:
        label = TemperatureBuckets().label(round(100 * cell.temperatures[0]))
        for one in model.temperatures:
            if one.temperature == label and one.speedup is not None:
                return one.speedup
    return model.speed.speedup


def _over_rounds(found: Sequence[Speedup | None]) -> tuple[float, float] | None:
    """The speedup over all rounds, and the largest of their standard errors."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    plain, actual = (
        sum(one.tokens * getattr(one, name) for one in known) for name in ("plain_seconds", "actual_seconds")
    )
    return plain / actual, max(one.error for one in known)


if __name__ == "__main__":
    sys.exit(main())
