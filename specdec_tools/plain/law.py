"""The law of plain steps, from what an engine without speculation did (docs/speedup.md).

One weighted regression over all loads, contexts, prompts and rounds gives it, from the plug-in's
counts of steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, log2
from typing import Final

from sidecar.analysis.speed.plain import (
    CONTEXT_BEYOND,
    PlainWork,
    beyond,
    level_shares,
    prefill_time,
    step_time,
)
from sidecar.engine.names import Counter
from sidecar.requests.messages import StepTally
from sidecar.settings.baselines import PlainStepTimes, StepLaw
from specdec_tools.plain.least_squares import Equation, least_squares

FEWEST_ROUNDS: Final = 3  # fewer tell too little of how certain the law is
_SEVERAL: Final = 1.5  # steps, from which on a prompt does not fit into one
_BUSY_MACHINE: Final = 0.05  # relative error for each process per core that was ready to run
_CLEARLY: Final = 0.5  # what a level by tokens may leave of what one by requests does
_GOOD: Final = 0.0001**2  # relative squares; no law is better than one that leaves so little
# The numbers of tokens that may be hidden, to choose from: a factor of 1.2 apart.
_HIDDEN: Final = (0.0, *(float(round(16 * 1.2**power)) for power in range(32)))

_CONTEXT: Final = "context"
_PREFILL: Final = "prefill"
_ATTENTION: Final = "attention"


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts that ended their prefill, by vLLM's page.

    Their tokens were ``computed``, or ``cached``; ``seconds`` sums their times to first token.
    """

    count: float = 0.0
    computed: float = 0.0
    cached: float = 0.0
    seconds: float = 0.0

    @classmethod
    def of(cls, grown: Mapping[Counter, float]) -> "Prompts":
        """By the growth of an engine's counters."""
        cached = grown.get(Counter.PREFIX_CACHE_HITS, 0.0)
        return cls(
            count=grown.get(Counter.FIRST_TOKENS, 0.0),
            computed=max(grown.get(Counter.PROMPT_TOKENS, 0.0) - cached, 0.0),
            cached=cached,
            seconds=grown.get(Counter.TTFT_SECONDS, 0.0),
        )

    def __add__(self, other: "Prompts") -> "Prompts":
        """Both together."""
        return Prompts(
            self.count + other.count,
            self.computed + other.computed,
            self.cached + other.cached,
            self.seconds + other.seconds,
        )

    @property
    def attended(self) -> float:
        """How many tokens a computed token attends to, on average."""
        return (self.cached + self.computed / 2) / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What an engine did in one slot of the measurement, under one kind of traffic.

    ``pure`` has those of its steps that prefilled next to nothing, ``mixed`` the others, both as
    far as any request decoded in them. ``number`` is the round that the slot belongs to, and
    ``wanted`` the number of requests that were sent at once.
    """

    prompts: Prompts
    pure: StepTally
    mixed: StepTally
    number: int
    wanted: int


def fit(blocks: Sequence[Block], machine_load: float | None = None) -> PlainStepTimes | None:
    """The law that explains the blocks best; None if they do not determine one.

    ``machine_load``: see ``PlainStepTimes``.
    """
    known = _at_known_loads(blocks)
    rounds = sorted({block.number for block in known})
    if len(rounds) < FEWEST_ROUNDS:
        return None

    design = _Design.of(known)
    others = [[block for block in known if block.number != number] for number in rounds]
    names = design.names
    for some in (known, *others):  # what a part does not tell has no error
        names = design.possible(some, names)

    law = design.law(known, names)
    without = [design.hiding(some, design.near()).law(some, names) for some in others]
    rounds_known = tuple(one for one in without if one is not None)
    if law is None or len(rounds_known) < len(rounds):
        return None

    times = PlainStepTimes(
        **asdict(law),
        running=design.running,
        context=design.context,
        contexts=design.contexts,
        by_tokens=design.by_tokens,
        chunk_tokens=_chunk(known),
        rounds=rounds_known,
        drift=min(_BUSY_MACHINE * (machine_load or 0.0), 1.0),
        first_token_seconds=_first_token_seconds(known),
        machine_load=machine_load,
    )
    # Least squares may give an impossible time, such as one below 0.
    return times if times.problem() is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """How much longer than by the law some steps took, relative, over all rounds.

    They are those of one load and length of prompts that did (``is_mixed``) or did not prefill.
    """

    wanted: int
    context: float
    is_mixed: bool
    off: float


def misses(blocks: Sequence[Block], times: PlainStepTimes) -> list[Miss]:
    """How far the law is from the steps that it was fitted to, the furthest first."""
    groups: dict[tuple[int, int, bool], list[tuple[float, float, float]]] = defaultdict(list)
    for block in blocks:
        for tally in (block.pure, block.mixed):
            if not tally.decodes:
                continue
            decodes = tally.decodes / tally.steps
            context = tally.context_tokens / tally.decodes
            work = PlainWork(
                steps=1.0,
                at_once=decodes,
                decodes=decodes,
                mixed=1.0,
                tokens=tally.prefill_tokens / tally.steps,
                context=block.prompts.attended,
            )
            by_law = step_time(times, decodes, context).seconds + prefill_time(times, work).seconds
            key = (block.wanted, round(log2(max(context, 1.0))), tally is block.mixed)
            groups[key].append((context, tally.seconds, tally.steps * by_law))

    found = [
        Miss(
            wanted=wanted,
            context=sum(context for context, _, _ in group) / len(group),
            is_mixed=is_mixed,
            off=sum(actual for _, actual, _ in group) / sum(law for _, _, law in group) - 1,
        )
        for (wanted, _, is_mixed), group in groups.items()
    ]
    return sorted(found, key=lambda miss: -abs(miss.off))


def _at_known_loads(blocks: Sequence[Block]) -> list[Block]:
    """The blocks of the loads whose level follows from any rounds but one."""
    rounds = defaultdict(set)
    for block in blocks:
        if block.pure.decodes:
            rounds[block.wanted].add(block.number)
    return [block for block in blocks if len(rounds[block.wanted]) > 1]


def _chunk(blocks: Sequence[Block]) -> float | None:
    """The most tokens that a step prefills, as far as prompts took several steps; else None."""
    chunks = []
    for block in blocks:
        if not block.mixed.steps or not block.prompts.count:
            continue
        each = block.mixed.prefill_tokens / block.mixed.steps
        if block.prompts.computed / block.prompts.count > _SEVERAL * each:
            chunks.append(each)

    return max(chunks, default=None)


def _first_token_seconds(blocks: Sequence[Block]) -> tuple[float, ...]:
    """The mean time to first token at each load; empty if one of them has none."""
    totals = [
        sum((block.prompts for block in group), Prompts()) for group in _by_load(blocks).values()
    ]
    if not all(total.count and total.seconds for total in totals):
        return ()
    return tuple(total.seconds / total.count for total in totals)


def _by_load(blocks: Sequence[Block]) -> Mapping[int, Sequence[Block]]:
    """The blocks by the requests sent, few first."""
    groups: dict[int, list[Block]] = defaultdict(list)
    for block in sorted(blocks, key=lambda one: one.wanted):
        groups[block.wanted].append(block)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Design:
    """The unknowns of the law, and what each contributes to a mean step."""

    running: tuple[float, ...]
    context: float
    contexts: tuple[float, float]
    has_prompts: bool
    by_tokens: bool = False
    hidden: float = 0.0

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> "_Design":
        """The one that leaves least unexplained."""
        groups = _by_load(blocks).values()
        totals = [sum((block.pure for block in group), StepTally()) for group in groups]
        pure = [block.pure for block in blocks if block.pure.decodes]
        contexts = [one.context_tokens / one.decodes for one in pure]

        design = cls(
            running=tuple(total.decodes / total.steps for total in totals),
            context=sum(contexts) / len(contexts),
            contexts=(min(contexts), max(contexts)),
            has_prompts=any(block.mixed.decodes for block in blocks),
        )
        if not design.has_prompts:
            return design
        by_requests, by_tokens = (
            replace(design, by_tokens=one).hiding(blocks) for one in (False, True)
        )
        is_clear = by_tokens.unexplained(blocks) < _CLEARLY * by_requests.unexplained(blocks)
        return by_tokens if is_clear else by_requests

    def near(self) -> Sequence[float]:
        """Numbers of hidden tokens about this one, and none."""
        return [one for one in _HIDDEN if not one or one / 2 < self.hidden < 2 * one]

    def hiding(self, blocks: Sequence[Block], among: Sequence[float] = _HIDDEN) -> "_Design":
        """The same with the number of hidden tokens that leaves least unexplained.

        It stays as it is if another explains no more than an unknown does by chance (Schwarz's
        criterion, 1978).
        """
        designs = (replace(self, hidden=hidden) for hidden in among)
        best = min(designs, key=lambda one: one.unexplained(blocks))
        rows = sum(1 for _ in self._rows(blocks))
        gained = rows * log(self.unexplained(blocks) / best.unexplained(blocks))
        return best if gained > log(rows) else self

    @property
    def names(self) -> list[str]:
        """The unknowns; of those that cannot be told apart, the first are kept.

        So a load of one context has the growth of the nearest below it, in proportion to the
        requests.
        """
        places = range(len(self.running))
        names = list(map(_level, places))
        low, high = self.contexts
        if high > CONTEXT_BEYOND * low:
            names += [_CONTEXT, *map(_growth, places)]
        return [*names, _PREFILL, _ATTENTION] if self.has_prompts else names

    def possible(self, blocks: Sequence[Block], names: Sequence[str]) -> list[str]:
        """Those of the names that these blocks determine; prefill takes no less time than none."""
        found = _possible(list(self._rows(blocks)), names)
        return [name for name in names if name in found]

    def unexplained(self, blocks: Sequence[Block]) -> float:
        """The weighted squares that the law leaves, or those that are as good as none."""
        rows = list(self._rows(blocks))
        found = _possible(rows, self.names)
        left = sum(row.weight * (row.seconds - row.explained(found)) ** 2 for row in rows)
        return max(left, _GOOD * sum(row.weight * row.seconds**2 for row in rows))

    def law(self, blocks: Sequence[Block], names: Sequence[str]) -> StepLaw | None:
        """The law with these unknowns; None without all levels."""
        found = least_squares(list(self._rows(blocks)), names)
        places = range(len(self.running))
        if not all(_level(place) in found for place in places):
            return None

        growth = [
            found.get(_CONTEXT, 0.0) * load + found.get(_growth(place), 0.0)
            for place, load in enumerate(self.running)
        ]
        has_growth = _CONTEXT in names
        at = self.context if has_growth else 0.0  # levels of one context are those at it
        return StepLaw(
            seconds=tuple(found[_level(place)] + at * growth[place] for place in places),
            context_seconds=tuple(growth) if has_growth else (),
            prefill_seconds=found.get(_PREFILL, 0.0) if self.has_prompts else None,
            attention_seconds=found.get(_ATTENTION, 0.0),
            hidden_tokens=self.hidden,
        )

    def _rows(self, blocks: Sequence[Block]) -> Iterator[Equation]:
        """A row for the mean step of each kind in each block."""
        for block in blocks:
            for tally in (block.pure, block.mixed):
                if tally.decodes:
                    yield self._row(tally, block.prompts.attended)

    def _row(self, tally: StepTally, attended: float) -> Equation:
        seconds = tally.seconds / tally.steps
        decodes = tally.decodes / tally.steps
        tokens = tally.prefill_tokens / tally.steps
        context = tally.context_tokens / tally.decodes

        filled = decodes + tokens if self.by_tokens else decodes
        parts = {_level(place): share for place, share in level_shares(self.running, filled)}
        for place, share in level_shares(self.running, decodes):
            parts[_growth(place)] = share * context
        parts[_CONTEXT] = decodes * context
        parts[_PREFILL] = beyond(self.hidden, decodes, tokens)
        parts[_ATTENTION] = tokens * attended
        # What a step is off by grows with its time.
        return Equation(seconds=seconds, parts=parts, weight=tally.steps / seconds**2)


def _possible(rows: Sequence[Equation], names: Sequence[str]) -> Mapping[str, float]:
    """The unknowns, without those by which prefill would take less time than none."""
    left = list(names)
    found = least_squares(rows, left)
    for name in (_ATTENTION, _PREFILL):
        if found.get(name, 0.0) < 0:
            left.remove(name)
            found = least_squares(rows, left)
    return found


def _level(place: int) -> str:
    return f"level {place}"


def _growth(place: int) -> str:
    return f"growth {place}"
