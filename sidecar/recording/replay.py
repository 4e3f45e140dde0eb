"""Replays a recording, in chronological order, into the state that a running sidecar keeps: the same code."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain
from operator import attrgetter
from pathlib import Path

from sidecar.analysis.report import Report
from sidecar.analysis.state import State
from sidecar.errors import RecordingError
from sidecar.recording.recording import PluginLine, Scrape, read_plugin, read_scrapes
from sidecar.settings import Settings


def replay(directory: Path, settings: Settings) -> Report:
    """The report at the recording's last poll, as from a sidecar whose windows span the whole recording.

    Raises:
        RecordingError: the recording cannot be read, or has no poll.
    """
    scrapes = list(read_scrapes(directory))
    if not scrapes:
        raise RecordingError(f"{directory}: the recording has no poll")
    length = scrapes[-1].at - scrapes[0].at
    windows = {name: max(getattr(settings, name), length) for name in ("latency_window", "history")}
    return replay_events(scrapes, read_plugin(directory), settings.model_copy(update=windows))


def replay_events(scrapes: Sequence[Scrape], plugin: Iterable[PluginLine], settings: Settings) -> Report:
    """The report at the last poll, over the window of these settings; needs at least one poll."""
    events: Iterator[PluginLine | Scrape] = merge(plugin, scrapes, key=attrgetter("at"))
    first = next(events)
    state = State(settings, first.at)
    for event in chain((first,), events):
        if isinstance(event, PluginLine):
            if event.connection:
                state.plugin.receive(event.connection, event.message)
        elif event.snapshot is not None:
            state.scraped(event.at, event.duration, settings.scrape_interval, event.snapshot)
        elif event.error is not None:
            state.failed(event.at, event.error)
    return state.report(scrapes[-1].at)
