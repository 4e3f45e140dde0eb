"""What a sidecar would know of an engine, whatever the plug-in's packets look like.

Only this module of these tests reads packets.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.requests.plain_receiver import COUNTS, OUTCOMES, PlainReceiver, SchedulerLife


@dataclass(frozen=True)
class Finished:
    """A finished request; ``temperature`` in hundredths, times in Unix seconds."""

    temperature: int
    outcome: str
    output_tokens: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    ending: str | None
    prompt_tokens: int
    adapter: str | None
    first_token: float | None
    last_token: float | None


@dataclass(frozen=True)
class Steps:
    """Steps in which requests decoded."""

    steps: int
    seconds: float
    decodes: int
    tokens: int
    drafts: int

    @property
    def seconds_per_step(self):
        return self.seconds / self.steps


class _Receiver(PlainReceiver):
    """Also counts packets, and connections."""

    def __init__(self, path):
        self.packets = 0
        self.connections = 0
        super().__init__(path)

    def _take(self, packet, life):
        self.packets += 1
        return super()._take(packet, life)

    def _read(self, connection):
        self.connections += 1
        super()._read(connection)


class Sidecar:
    """Listens for one engine at a time; ``until`` waits for what has been sent."""

    def __init__(self, path):
        self._receiver = _Receiver(Path(path))

    def close(self):
        self._receiver.die()

    def live_again(self):
        self._receiver.live_again()

    def until(self, read, expected=True, seconds=20.0):
        """Waits until ``read()`` is what is expected."""
        self._receiver.until(read, expected, seconds)

    def engine(self, number=-1):
        """What is known of an engine, of several by the order of their hellos."""
        lives = [*self._receiver.lives.values()]
        return Known(lives[number] if lives else SchedulerLife())

    @property
    def engines(self):
        return len(self._receiver.lives)

    @property
    def packets(self):
        return self._receiver.packets

    @property
    def connections(self):
        return self._receiver.connections

    @property
    def is_sound(self):
        """Whether no number has fallen."""
        return not self._receiver.fallen


class Known:
    """What is known of one engine."""

    def __init__(self, life):
        self._life = life

    @property
    def state(self):
        return self._life.state

    @property
    def reason(self):
        return self._life.hello.get("reason")

    @property
    def hello(self):
        """What it said last of itself."""
        return self._life.hello

    @property
    def vllm(self):
        """vLLM's version; None if unknown."""
        return self._life.hello["vllm"]

    @property
    def dropped_block(self):
        """Tokens that a prefix-cache hit loses on average; 0 if none, None if unknown."""
        configuration = self._life.hello["configuration"]
        return (configuration["block_size"] or None) if configuration["drops_cache_block"] else 0

    @property
    def totals(self):
        """Drafts, draft tokens and accepted tokens."""
        return self._life.totals()

    @property
    def by_temperature(self):
        """The same by hundredths, without what drafted nothing."""
        return _counts(self._life.tables["temperature"])

    @property
    def ended_by_temperature(self):
        """Ended requests by hundredths."""
        rows = self._life.tables["temperature"].items()
        return {key: sum(row[name] for name in OUTCOMES) for key, row in rows}

    @property
    def by_adapter(self):
        """Ended requests by the adapter's name; "" is none, and None all others'."""
        found = Counter()
        for (_, _, prompt, adapter), numbers in self._life.cells.items():
            name = None if prompt is None else adapter or ""
            found[name] += sum(numbers[: len(OUTCOMES)])
        return dict(found)

    @property
    def endings(self):
        """Ended requests by how their outputs end."""
        rows = self._life.tables["ending"].items()
        return {key: sum(row[name] for name in OUTCOMES) for key, row in rows}

    def steps(self, decodes=None):
        """All steps, or those in which so many requests decoded."""
        found = Counter()
        for row in self._life.tables["steps"].values():
            if decodes is None or row["decodes"] == decodes * row["steps"]:
                found.update({name: row[name] for name in Steps.__dataclass_fields__})
        return Steps(**{name: found[name] for name in Steps.__dataclass_fields__})

    @property
    def finished(self):
        """Finished requests, in the order of their end."""
        names = Finished.__dataclass_fields__
        return [Finished(**{name: done[name] for name in names}) for done in self._life.done]

    @property
    def lost(self):
        """Finished requests that were dropped."""
        return self._life.lost


def _counts(rows):
    counted = {key: tuple(row[name] for name in COUNTS) for key, row in rows.items()}
    return {key: numbers for key, numbers in counted.items() if any(numbers)}
