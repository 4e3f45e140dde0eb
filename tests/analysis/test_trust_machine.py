"""Engines, plug-ins and liars in any order: what is exported is the engines' own or absent, and falls only with them.

More and longer runs: ``pytest tests/analysis/test_trust_machine.py --hypothesis-profile=long``.
"""

import itertools
from dataclasses import replace

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidecar.requests.messages import HelloState, ReportEnd, ReportPart, Row, StepTally, Table
from sidecar.requests.tally import NOTHING, Tally
from tests.analysis.analysis_tools import USUAL, PluginEnd, Server, finished, snap

TEMPERATURES = {"0": 0, "0.3-0.5": 40, "1+": 150}
ENGINES = ("0", "1")
engines, liars = st.sampled_from(ENGINES), st.integers(0, 2)
labels = st.sampled_from(sorted(TEMPERATURES))
sizes = st.sampled_from([0, 1, 7, 400, 10**6])
_numbers = itertools.count(1)


def numbers(tally):
    return (tally.drafts, tally.draft_tokens, tally.accepted_tokens)


def plus(left, right):
    return tuple(map(sum, zip(left, right, strict=True)))


class Engine:
    """A scheduler with the plug-in; ``possible`` are by temperature all sums that its cuts have ever had."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.before = {label: {(0, 0, 0)} for label in TEMPERATURES}  # of the engine's lives in this process of vLLM
        self.counted = 0  # drafts by vLLM's counters, likewise
        self.restart()

    def restart(self):
        self.plugin = PluginEnd(self.server, next(_numbers), start=f"engine {next(_numbers)}", engine=int(self.name))
        self.is_connected = True
        self.possible = {label: set(sums) for label, sums in self.before.items()}

    def report(self, *requests):
        if self.is_connected:
            self.plugin.tick(finished=requests)
            for label, temperature in TEMPERATURES.items():
                cut = numbers(self.plugin.rows.get((Table.TEMPERATURE, temperature), NOTHING))
                self.possible[label] |= {plus(sums, cut) for sums in self.before[label]}


class Liar:
    """Writes to the socket in an engine's name whatever it likes."""

    def __init__(self, server):
        self.server, self.end, self.engine = server, None, None

    def hello(self, engine, **hello):
        start = f"liar {next(_numbers)}" if self.end is None or self.engine != engine else self.end.start
        self.close()
        self.engine = engine
        self.end = PluginEnd(self.server, next(_numbers), start=start, engine=int(engine), **hello)

    def tell(self, total, rows, requests=()):
        tables = {table: tuple(Row(key=key, since=0.0, counts=counts) for key, counts in rows.get(table, {}).items())
                  for table in Table}  # fmt: skip
        steps = (Row(key=0, since=0.0, counts=StepTally(steps=10**6, decodes=10**6, tokens=10**7)),)
        end = ReportEnd(total=total, lost=0)
        self.end.send(ReportPart(**tables, steps=steps, finished=requests, end=end))

    def close(self):
        if self.end is not None:
            self.end.close()
            self.end = None


def tally(drafts, accepted=1):
    return Tally(drafts=drafts, draft_tokens=3 * drafts, accepted_tokens=accepted * drafts)


class Trust(RuleBasedStateMachine):
    """One vLLM of two engines, and three liars."""

    @initialize()
    def begin(self):
        self.server = Server(thresholds={"min_requests": 1})
        self.process = 1.0
        self.engines = {name: Engine(self.server, name) for name in ENGINES}
        self.liars = [Liar(self.server) for _ in range(3)]
        self.exported = {}  # by temperature, at the last poll that had a split
        self.finished = dict.fromkeys(TEMPERATURES, 0)
        self.drafted = dict.fromkeys(TEMPERATURES, 0)
        self.has_restarted = False
        self.poll()

    # vLLM

    @rule(name=engines, label=labels, drafts=sizes)
    def serve(self, name, label, drafts):
        engine = self.engines[name]
        engine.plugin.serve(TEMPERATURES[label], requests=0, drafts=drafts)
        engine.counted += drafts
        self.drafted[label] += drafts

    @rule(name=engines, label=labels)
    def finish(self, name, label):
        engine, request = self.engines[name], finished(TEMPERATURES[label], self.server.at)
        engine.plugin.serve(TEMPERATURES[label], drafts=10, accepted=20)
        engine.counted += 10
        self.drafted[label] += 10
        self.finished[label] += engine.is_connected
        engine.report(request)

    @rule(name=engines)
    def report(self, name):
        self.engines[name].report()

    @rule(name=engines)
    def leave(self, name):
        engine = self.engines[name]
        engine.plugin.close()
        engine.is_connected = False

    @rule(name=engines)
    def connect_again(self, name):
        engine = self.engines[name]
        engine.plugin.close()
        engine.plugin.connection = next(_numbers)
        engine.plugin.hello(engine=int(name))
        engine.is_connected = True
        engine.report()

    @rule(name=engines)
    def restart_engine(self, name):
        """vLLM's counters of it go on, as a data-parallel supervisor has it."""
        engine = self.engines[name]
        engine.plugin.close()
        engine.before = engine.possible
        engine.restart()
        self.has_restarted = True

    @rule(outlives=st.booleans())
    def restart_vllm(self, outlives):
        self.process += 1
        for name, engine in self.engines.items():
            if not (outlives and self._is_known(name)):
                engine.plugin.close()
            self.engines[name] = Engine(self.server, name)
        self.has_restarted = True

    # Liars

    @rule(liar=liars, engine=engines, state=st.sampled_from(HelloState))
    def lie_hello(self, liar, engine, state):
        self.liars[liar].hello(engine, state=state, reason="" if state is HelloState.OBSERVING else "x")

    @rule(liar=liars, total=sizes, row=sizes, label=labels, table=st.sampled_from(Table))
    def lie(self, liar, total, row, label, table):
        """Numbers of any size, whose tables may or may not add up."""
        assume(self.liars[liar].end is not None)
        rows = {by: {key: tally(total, 3)} for by, key in {**USUAL, Table.TEMPERATURE: TEMPERATURES[label]}.items()}
        rows[table] = {key: tally(row, 3) for key in rows[table]}
        self.liars[liar].tell(tally(total, 3), rows)

    @rule(liar=liars, label=labels, requests=st.integers(1, 5), total=sizes)
    def lie_finished(self, liar, label, requests, total):
        assume(self.liars[liar].end is not None)
        lie = finished(TEMPERATURES[label], self.server.at, accepted_tokens=30)
        self.liars[liar].tell(replace(tally(total), stopped=requests), {}, (lie,) * requests)

    @rule(liar=liars, label=labels)
    def copy(self, liar, label):
        """All that vLLM has counted, at another temperature, once the engine's own plug-in was confirmed."""
        end = self.liars[liar].end
        assume(end is not None and self._is_known(self.liars[liar].engine))
        counted = tally(self.engines[self.liars[liar].engine].counted, 2)
        rows = {by: {key: counted} for by, key in {**USUAL, Table.TEMPERATURE: TEMPERATURES[label]}.items()}
        self.liars[liar].tell(counted, rows)

    @rule(liar=liars)
    def lie_close(self, liar):
        self.liars[liar].close()

    @rule(name=engines)
    def crowd(self, name):
        """So many connections that everyone else's are closed."""
        for engine in self.engines.values():
            engine.plugin.close()
            engine.is_connected = False
        for _ in range(40):
            PluginEnd(self.server, number := next(_numbers), start=f"crowd {number}", engine=int(name)).close()

    # The sidecar

    @rule(seconds=st.sampled_from([1.0, 5.0, 40.0]))
    def poll(self, seconds=1.0):
        shown = [snap(name, engine.counted) for name, engine in self.engines.items()]
        self.server.poll(*shown, start=self.process, seconds=seconds)
        self.has_polled = True

    @rule()
    def fail(self):
        self.server.fail()

    @precondition(lambda self: hasattr(self, "engines"))
    @invariant()
    def what_is_exported_is_the_engines_own(self):
        temperatures = self.server.model().temperatures if self.has_polled else ()
        self.has_polled = False
        for shown in temperatures:
            first, second = (engine.possible.get(shown.temperature, {(0, 0, 0)}) for engine in self.engines.values())
            own = {plus(one, other) for one in first for other in second}
            assert numbers(shown.tally) in own, shown.temperature
            assert shown.acceptances.count <= self.finished.get(shown.temperature, 0)
            assert shown.window.drafts <= self.drafted.get(shown.temperature, 0)
            before = self.exported.get(shown.temperature, (0, 0, 0))
            if not self.has_restarted:
                assert all(map(int.__ge__, numbers(shown.tally), before)), f"{shown.temperature} fell"
            self.exported[shown.temperature] = numbers(shown.tally)
        self.has_restarted &= not temperatures

    def _is_known(self, name):
        lives = self.server.state.plugin
        start = self.engines[name].plugin.start
        return any(life.hello.start == start and life.confirmed for life in lives.counting("m"))


TestTrust = Trust.TestCase
TestTrust.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
