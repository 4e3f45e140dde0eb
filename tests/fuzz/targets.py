"""What is fuzzed: each target takes any bytes, and raises if a parser breaks a promise."""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from sidecar.engine.exposition import PageReader
from sidecar.engine.names import wanted
from sidecar.errors import PageError, SettingsError
from sidecar.requests.messages import (
    MAX_PACKET_BYTES,
    VERSION,
    Dropped,
    Hello,
    ReportPart,
    Unreadable,
)
from sidecar.requests.receiver import DROP_REASONS, PluginReceiver
from sidecar.requests.tally import tally_of
from sidecar.settings import load_settings
from sidecar.settings.groups import Limits
from sidecar.settings.web_config import read_web_config

CORPUS = Path(__file__).parent / "corpus"
MOST_TOKENS = 2**53 * sum(range(1025))  # as many drafts of each length as there may be
LIMITS = Limits.model_construct(page_bytes=65_536, series=100)


def exposition(data: bytes) -> None:
    """A page reads the same by two readers.

    One remembers another page, and one has just read this page.

    If both pages have as many lines, what is new outside the lines in use is not looked for.
    """

    def read(reader: PageReader, body: bytes):
        try:
            page = reader.read(body)
        except PageError as error:
            return type(error)
        return dict(zip(page.series, map(repr, page.values), strict=True))

    first, _, second = data.partition(b"\xff")
    known = PageReader(wanted(), LIMITS)
    read(known, first)
    fresh = read(PageReader(wanted(), LIMITS), second)
    for _ in range(2):
        again = read(known, second)
        if first.count(b"\n") != second.count(b"\n"):
            assert again == fresh
        elif isinstance(again, dict) and isinstance(fresh, dict):
            assert again.items() <= fresh.items()


class Sink:
    """Takes what a receiver delivers, and checks it."""

    def __init__(self):
        self.first = True

    def __call__(self, connection, message):
        match message:
            case Dropped():
                assert message.reason in DROP_REASONS
            case Unreadable():
                assert message.version != VERSION
            case Hello():
                assert len(message.start) <= 64
            case ReportPart():
                assert not self.first
                tallies = [tally_of(numbers) for _, numbers in message.cells]
                for counts in tallies:
                    assert sum(counts.accepted_at) == counts.accepted_tokens
                    assert sum(counts.drafted_at) == counts.draft_tokens
                if message.end is not None:
                    tallies += message.end.endings.values()
                for counts in (*tallies, *message.finished):
                    assert 0 <= counts.accepted_tokens <= counts.draft_tokens
                    assert counts.draft_tokens <= MOST_TOKENS
        self.first &= isinstance(message, Dropped)


def packets(data: bytes) -> None:
    """Whatever two packets a sender writes, the receiver delivers what is possible.

    It counts the rest.
    """
    receiver = PluginReceiver(Path("/nowhere"), Sink(), structlog.get_logger())
    for number, part in enumerate(data[:MAX_PACKET_BYTES].split(b"\0", 1)):
        if not receiver._take(1, part, is_first=number == 0):
            return


def settings(data: bytes) -> None:
    """A settings file, and a web configuration, are valid or refused.

    The lines that refuse them can be printed.
    """
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(data)
        file.flush()
        lines = ["valid"]
        try:
            load_settings(Path(file.name), {})
        except SettingsError as error:
            lines = error.messages
        assert lines
        assert all(line.isprintable() for line in lines)
        with suppress(ValueError):
            read_web_config(Path(file.name))


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (exposition, packets, settings)
}
