"""The benchmark's tables: the sidecar's speedups and request times, compared with the clients'."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import unescape
from statistics import fmean

from benchmarks.speedup.cells import Cell, Seen, Server, seconds_per_token
from sidecar.analysis.model_state import request_numbers
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speed.speedup import Speedup
from sidecar.analysis.split.tallies import TemperatureBuckets
from sidecar.commands.baseline.watch import Watched
from sidecar.commands.sweep.client import Sample
from sidecar.export.declaration import Shown
from sidecar.export.exporter import families
from sidecar.export.page.page import content
from sidecar.recording.replay import replay_events
from sidecar.settings import Settings, load_settings
from sidecar.settings.baselines import PlainStepTimes

BAR = 0.07
_TITLES = (
    *("K", "at once", "T", "acceptance", "plain, ms/token", "speculating", "clients' speedup", "sidecar's"),
    *("standard error", "off", "off, by the plain times of this cell", "verdict"),
)
_TIMES = ("ttft", "tpot", "duration")
Round = Sequence[Seen]  # by server
_INFO = "specdec_speculation_info"
_Curves = Mapping[str, PlainStepTimes]  # by model


def report(names: Sequence[str], servers: Sequence[Server], found: Sequence[tuple[Cell, Round]]) -> int:
    """Prints all results; the first server is the plain one. Returns how many speedups are off or missing."""
    _print(_TITLES, ["---"] * len(_TITLES))
    curves = _curves(servers[0], [seen[0] for _, seen in found])
    off = 0
    cells = list(dict.fromkeys(cell for cell, _ in found))
    for number, name in enumerate(names[1:], 1):
        for cell in cells:
            rounds = [(seen[0], seen[number]) for other, seen in found if other == cell]
            off += sum(_rows(name, cell, rounds, (servers[0], servers[number]), curves))
    print()
    _print(("K", "at once", "T", "requests", *(f"{name}, ms: {of}" for name in _TIMES for of in ("clients'", "ours"))))
    _print(["---"] * (4 + 2 * len(_TIMES)))
    for number, name in enumerate(names):
        for cell in cells:
            _times(name, cell, servers[number], [seen[number] for other, seen in found if other == cell])
    for number, name in enumerate(names[1:], 1):
        print(f"\nK = {name}, at the end:\n{_said(servers[number], found[-1][1][number], curves)}")
    return off


def _print(*rows: Sequence[str]) -> None:
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def _curves(plain: Server, seen: Sequence[Seen]) -> dict[str, PlainStepTimes]:
    """Plain step times from what the plain server did in these cells, by model."""
    watched, spans = Watched(), [(one.begun, one.ended) for one in seen]
    for one in plain.scrapes:
        if one.snapshot is not None and any(begun <= one.at <= ended for begun, ended in spans):
            watched.scraped(one.at, one.duration, 0.0, one.snapshot)
    return watched.curves()


def _rows(
    name: str, cell: Cell, rounds: Sequence[tuple[Seen, Seen]], servers: tuple[Server, Server], curves: _Curves
) -> Iterator[bool]:
    """Prints one cell and, if it is mixed, each of its temperatures; yields whether each is off or missing."""
    plain, server = servers
    models = [_replayed(server, one, curves) for _, one in rounds]
    # With the plain times of this very cell, what is left is the method's error, without the machine's drift.
    own = [_replayed(server, one, _curves(plain, [first])) for first, one in rounds]
    before = seconds_per_token(sample for one, _ in rounds for sample in one.samples)  # at any temperature
    parts = [(cell.name, cell.temperatures[0] if len(cell.temperatures) == 1 else None)]
    if len(cell.temperatures) > 1:
        parts += [(f"{one} in the mix", one) for one in cell.temperatures]
    for title, temperature in parts:
        samples = [one for _, seen in rounds for one in seen.samples if temperature in (None, one.temperature)]
        now = seconds_per_token(samples)
        row = [name, str(cell.at_once), title, f"{_acceptance(samples):.2f}", f"{before * 1000:.1f}"]
        row += [f"{now * 1000:.1f}", f"{before / now:.2f}"]
        is_whole = len(parts) == 1
        speedup = _over_rounds(_speedup(model, temperature, is_whole=is_whole) for model in models)
        if speedup is None:
            withheld = next((one.speed.withheld for one in models if one is not None and one.speed is not None), None)
            row += [withheld or "none", "", "", "", ""]
        else:
            of_cell = _over_rounds(_speedup(model, temperature, is_whole=is_whole) for model in own)
            row += [f"{speedup[0]:.2f}", f"{speedup[1]:.2f}", f"{speedup[0] - before / now:+.3f}"]
            row += [f"{of_cell[0] - before / now:+.3f}" if of_cell else "none", _verdict(models[-1], temperature)]
        _print(row)
        yield speedup is None or abs(speedup[0] - before / now) > BAR


def _acceptance(samples: Sequence[Sample]) -> float:
    """The acceptance rate by the replies' own numbers."""
    return sum(one.accepted_tokens for one in samples) / (sum(one.draft_tokens for one in samples) or 1)


def _replayed(server: Server, seen: Seen, curves: _Curves) -> ModelReport | None:
    """What a sidecar that watched the server from its start would have reported on the cell, at its end."""
    report = _shown(server, seen, curves).report
    return report.models[0] if report.models else None


def _shown(server: Server, seen: Seen, curves: _Curves) -> Shown:
    scrapes = [one for one in server.scrapes if one.at <= seen.ended]
    heard = [one for one in server.heard if one.at <= seen.ended]
    settings = _settings(curves, seen.ended - seen.begun)
    return Shown(replay_events(scrapes, heard, settings), settings)


def _said(server: Server, seen: Seen, curves: _Curves) -> str:
    """The speculation that the sidecar exports, and its page's text, with a baseline and without."""
    with_baseline, without = _shown(server, seen, curves), _shown(server, seen, {})
    info = [dict(one.labels) for family in families(without) for one in family.samples if one.name == _INFO]
    pages = [re.sub(r"\s+", " ", unescape(re.sub("<[^>]+>", " ", content(one)))) for one in (without, with_baseline)]
    return f"{_INFO}{info}\nwithout a baseline:{pages[0]}\nwith:{pages[1]}"


def _settings(curves: _Curves, window: float) -> Settings:
    gates = {"SPECDEC_THRESHOLDS__MIN_REQUESTS": "1", "SPECDEC_THRESHOLDS__MIN_DRAFTS_PER_SECOND": "0"}
    return load_settings(None, gates).model_copy(update={"plain_steps": dict(curves), "latency_window": window})


def _label(temperature: float) -> str:
    return TemperatureBuckets().label(round(100 * temperature))


def _speedup(model: ModelReport | None, temperature: float | None, *, is_whole: bool) -> Speedup | None:
    """At one temperature, or of all requests for None; a cell's only temperature may fall back to all requests."""
    if model is None or model.speed is None:
        return None
    if temperature is not None:
        found = (one.speedup for one in model.temperatures if one.temperature == _label(temperature))
        if (speedup := next(found, None)) is not None or not is_whole:
            return speedup
    return model.speed.speedup


def _verdict(model: ModelReport | None, temperature: float | None) -> str:
    if model is None:
        return ""
    if temperature is None:
        return model.judgement.verdict
    found = (one.judgement.verdict for one in model.temperatures if one.temperature == _label(temperature))
    return next(found, "")


def _over_rounds(found: Iterable[Speedup | None]) -> tuple[float, float] | None:
    """The speedup over all rounds, and the largest of their standard errors."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    plain, actual = (
        sum(one.tokens * getattr(one, name) for one in known) for name in ("plain_seconds", "actual_seconds")
    )
    return plain / actual, max(one.error for one in known)


def _times(name: str, cell: Cell, server: Server, rounds: Sequence[Seen]) -> None:
    """Prints one cell's mean request times: the clients', and the engine's as the plug-in reports them."""
    spans = [(one.begun, one.ended) for one in rounds]
    heard = [one for one in server.heard if any(a <= one.at <= b for a, b in spans)]
    ended = [request for one in heard if one.report is not None for request in one.report.finished]
    for temperature in cell.temperatures:
        clients = [one for seen in rounds for one in seen.samples if one.temperature == temperature]
        ours = [request_numbers(one) for one in ended if one.temperature == round(100 * temperature)]
        row = [name, str(cell.at_once), str(temperature), f"{len(clients)}"]
        for time in _TIMES:
            row += [_mean(getattr(one, time) for one in requests) for requests in (clients, ours)]
        _print(row)


def _mean(times: Iterable[float | None]) -> str:
    known = [one for one in times if one is not None]
    return f"{1000 * fmean(known):.2f}" if known else "none"
