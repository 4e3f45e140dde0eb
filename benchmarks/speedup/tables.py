"""The benchmark's tables: the sidecar's speedups and request times, compared with the clients'."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import product
from operator import attrgetter
from statistics import fmean

from benchmarks.speedup.cells import Cell, CellTraffic, ObservedServer, seconds_per_token
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speed.speedup import Speedup
from sidecar.analysis.split.tallies import TemperatureBuckets
from sidecar.analysis.temperature_state import request_numbers
from sidecar.settings import Settings, load_settings
from sidecar.settings.baselines import PlainStepTimes
from specdec_tools.measuring.client import Sample
from specdec_tools.plain.measured import BaselineRun, Slot
from specdec_tools.recording.recording import PluginLine, Scrape, replay_events

BAR = 0.07
_THIRDS = 3
_TITLES = (
    *(
        "K",
        "at once",
        "T",
        "acceptance",
        "plain, ms/token",
        "speculating",
        "clients' speedup",
        "sidecar's",
    ),
    *("standard error", "off", "off, by the plain times of this cell", "verdict"),
)
_TIMES = ("ttft", "tpot", "duration")
Round = Sequence[CellTraffic]  # by server
_Curves = Mapping[str, PlainStepTimes]  # by model


def report(
    names: Sequence[str], servers: Sequence[ObservedServer], measured: Sequence[tuple[Cell, Round]]
) -> int:
    """Prints all results; returns how many speedups are off or missing.

    The first server is the plain one.
    """
    _print(_TITLES, ["---"] * len(_TITLES))
    curves = _curves(servers[0], [(cell.at_once, traffic[0]) for cell, traffic in measured])
    off = 0
    cells = list(dict.fromkeys(cell for cell, _ in measured))
    for number, name in enumerate(names[1:], 1):
        for cell in cells:
            rounds = [(traffic[0], traffic[number]) for other, traffic in measured if other == cell]
            off += sum(_rows(name, cell, rounds, (servers[0], servers[number]), curves))
    print()
    _print(
        (
            "K",
            "at once",
            "T",
            "requests",
            *(f"{name}, ms: {of}" for name in _TIMES for of in ("clients'", "ours")),
        )
    )
    _print(["---"] * (4 + 2 * len(_TIMES)))
    for number, name in enumerate(names):
        for cell in cells:
            _times(
                name,
                cell,
                servers[number],
                [traffic[number] for other, traffic in measured if other == cell],
            )
    return off


def _print(*rows: Sequence[str]) -> None:
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def _curves(
    plain: ObservedServer, cells: Sequence[tuple[int, CellTraffic]]
) -> dict[str, PlainStepTimes]:
    """Plain step times from what the plain server did in these cells, by model.

    Each third of a cell, with its requests at once, is a round.
    """
    slots = []
    for third, (at_once, part) in product(range(_THIRDS), cells):
        each = (part.ended - part.begun) / _THIRDS
        begun = part.begun + third * each
        slots.append((begun, begun + each, Slot(third, at_once)))

    measured = BaselineRun()
    current: Slot | None = None
    events: Iterator[PluginLine | Scrape] = merge(
        plain.messages, plain.scrapes, key=attrgetter("at")
    )
    for event in events:
        if isinstance(event, PluginLine):
            if event.message is not None:
                measured.receive(event.connection, event.message)
        elif event.snapshot is not None:
            measured.scraped(event.at, event.duration, 0.0, event.snapshot)
            slot = next((one for begun, ended, one in slots if begun <= event.at < ended), None)
            if slot != current:
                measured.end()
                if slot is not None:
                    measured.begin(slot)
            current = slot

    return measured.curves()


def _rows(
    name: str,
    cell: Cell,
    rounds: Sequence[tuple[CellTraffic, CellTraffic]],
    servers: tuple[ObservedServer, ObservedServer],
    curves: _Curves,
) -> Iterator[bool]:
    """Prints one cell and, if it is mixed, each of its temperatures.

    Yields whether each is off or missing.
    """
    plain, server = servers
    models = [replayed(server, traffic, curves) for _, traffic in rounds]
    # With the plain times of this very cell, what is left is the method's error, without the
    # machine's drift.
    own = [
        replayed(server, traffic, _curves(plain, [(cell.at_once, first)]))
        for first, traffic in rounds
    ]
    # at any temperature
    before = seconds_per_token(sample for first, _ in rounds for sample in first.samples)
    parts = [(cell.name, cell.temperatures[0] if len(cell.temperatures) == 1 else None)]
    if len(cell.temperatures) > 1:
        parts += [(f"{temperature} in the mix", temperature) for temperature in cell.temperatures]
    for title, temperature in parts:
        samples = [sample for _, traffic in rounds for sample in traffic.samples]
        samples = [sample for sample in samples if temperature in (None, sample.temperature)]
        now = seconds_per_token(samples)
        row = [
            name,
            str(cell.at_once),
            title,
            f"{_acceptance(samples):.2f}",
            f"{before * 1000:.1f}",
        ]
        row += [f"{now * 1000:.1f}", f"{before / now:.2f}"]
        is_whole = len(parts) == 1
        speedup = _over_rounds(_speedup(model, temperature, is_whole=is_whole) for model in models)
        if speedup is None:
            withheld = next(
                (model.speed.withheld for model in models if model and model.speed), None
            )
            row += [withheld or "none", "", "", "", ""]
        else:
            of_cell = _over_rounds(_speedup(model, temperature, is_whole=is_whole) for model in own)
            row += [f"{speedup[0]:.2f}", f"{speedup[1]:.2f}", f"{speedup[0] - before / now:+.3f}"]
            row += [
                f"{of_cell[0] - before / now:+.3f}" if of_cell else "none",
                _verdict(models[-1], temperature),
            ]
        _print(row)
        yield speedup is None or abs(speedup[0] - before / now) > BAR


def _acceptance(samples: Sequence[Sample]) -> float:
    """The acceptance rate by the replies' own numbers."""
    return sum(sample.accepted_tokens for sample in samples) / (
        sum(sample.draft_tokens for sample in samples) or 1
    )


def replayed(server: ObservedServer, traffic: CellTraffic, curves: _Curves) -> ModelReport | None:
    """What a sidecar that watched the server from its start would have reported on the cell.

    The report is the one at the cell's end.
    """
    scrapes = [scrape for scrape in server.scrapes if scrape.at <= traffic.ended]
    messages = [message for message in server.messages if message.at <= traffic.ended]
    models = replay_events(
        scrapes, messages, _settings(curves, traffic.ended - traffic.begun)
    ).models
    return models[0] if models else None


def _settings(curves: _Curves, window: float) -> Settings:
    gates = {
        "SPECDEC_THRESHOLDS__MIN_REQUESTS": "1",
        "SPECDEC_THRESHOLDS__MIN_DRAFTS_PER_SECOND": "0",
    }
    return load_settings(None, gates).model_copy(
        update={"plain_steps": dict(curves), "latency_window": window}
    )


def _label(temperature: float) -> str:
    return TemperatureBuckets().label(round(100 * temperature))


def _speedup(
    model: ModelReport | None, temperature: float | None, *, is_whole: bool
) -> Speedup | None:
    """At one temperature, or of all requests for None.

    A cell's only temperature may fall back to all requests.
    """
    if model is None or model.speed is None:
        return None
    if temperature is not None:
        part = next(
            (part for part in model.temperatures if part.temperature == _label(temperature)), None
        )
        if part is not None and part.speedup is not None:
            return part.speedup
        if not is_whole:
            return None
    return model.speed.speedup


def _verdict(model: ModelReport | None, temperature: float | None) -> str:
    if model is None:
        return ""
    if temperature is None:
        return model.judgement.verdict
    parts = (
        part.judgement.verdict
        for part in model.temperatures
        if part.temperature == _label(temperature)
    )
    return next(parts, "")


def _over_rounds(speedups: Iterable[Speedup | None]) -> tuple[float, float] | None:
    """The speedup over all rounds, and the largest of their standard errors."""
    known = [speedup for speedup in speedups if speedup is not None]
    if not known:
        return None
    plain = sum(speedup.tokens * speedup.plain_seconds for speedup in known)
    actual = sum(speedup.tokens * speedup.actual_seconds for speedup in known)
    return plain / actual, max(speedup.error for speedup in known)


def _times(name: str, cell: Cell, server: ObservedServer, rounds: Sequence[CellTraffic]) -> None:
    """Prints one cell's mean request times.

    Those of the clients, and those of the engine as the plug-in reports them.
    """
    messages = [
        message
        for message in server.messages
        if any(part.begun <= message.at <= part.ended for part in rounds)
    ]
    ended = [
        request
        for message in messages
        if message.report is not None
        for request in message.report.finished
    ]
    for temperature in cell.temperatures:
        clients = [
            sample
            for part in rounds
            for sample in part.samples
            if sample.temperature == temperature
        ]
        ours = [
            request_numbers(request)
            for request in ended
            if request.temperature == round(100 * temperature)
        ]
        row = [name, str(cell.at_once), str(temperature), f"{len(clients)}"]
        for time in _TIMES:
            row += [
                _mean(getattr(request, time) for request in requests)
                for requests in (clients, ours)
            ]
        _print(row)


def _mean(times: Iterable[float | None]) -> str:
    known = [seconds for seconds in times if seconds is not None]
    return f"{1000 * fmean(known):.2f}" if known else "none"
