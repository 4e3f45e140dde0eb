"""Engines, plug-ins and liars in any order.

What is exported is the engines' own or absent, and falls only with them. Once all is calm, it is
all of theirs.

More of it: ``python -m tests.analysis.test_whose_machine 2000``.
"""

import itertools
import sys
from operator import le, sub

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sidecar.analysis.split.plugin_state import NoSplitReason
from sidecar.engine.engine_key import EngineKey
from sidecar.requests.messages import HelloState, Speculation
from sidecar.requests.tally import NO_REQUESTS, tally_of
from tests.analysis.analysis_tools import EAGLE, PluginEnd, Server, finished, snap
from tests.cells import DEPTH

OTHER_WAY = Speculation("mtp", 5)
TEMPERATURES = {"0": 0, "0.3-0.5": 40, "1+": 150}
ENGINES = ("0", "1")
engines, liars = st.sampled_from(ENGINES), st.integers(0, 2)
ids = st.sampled_from(["another", None])  # of a liar's server
labels = st.sampled_from(sorted(TEMPERATURES))
sizes = st.sampled_from([0, 1, 7, 400, 10**6])
# Seconds until each poll that follows.
polls = st.sampled_from([(), (1.0,), (1.0,), (1.0, 1.0), (40.0, 40.0)])
_numbers = itertools.count(1)


def flat(tally):
    """A tally's numbers in a row of one length."""
    totals = (tally.drafts, tally.draft_tokens, tally.accepted_tokens)
    positions = map(padded, (tally.drafted_at, tally.accepted_at))
    return (*tally.by_outcome.values(), *totals, *itertools.chain.from_iterable(positions))


def padded(positions):
    assert len(positions) <= DEPTH
    return (*positions, *[0] * (DEPTH - len(positions)))


NOTHING = flat(NO_REQUESTS)


def is_sum_of(total, lives):
    """Whether the total is one cut of each life, summed: most often the latest."""
    if not lives:
        return not any(total)
    *others, life = lives
    return any(
        is_sum_of(tuple(map(sub, total, cut)), others)
        for cut in reversed(life)
        if all(map(le, cut, total))
    )


class Engine:
    """A scheduler with the plug-in.

    ``lives`` are its own in this process of vLLM: by temperature, all that its cuts have ever had.
    """

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.lives = []
        self.counted = 0  # drafts by vLLM's counters, likewise
        self.restart()

    def restart(self):
        self.plugin = PluginEnd(self.server, next(_numbers), engine=int(self.name))
        self.is_connected = True
        self.lives.append({label: [NOTHING] for label in TEMPERATURES})

    def report(self, *requests):
        if self.is_connected:
            self.plugin.tick(finished=requests)
            for label, temperature in TEMPERATURES.items():
                cuts = self.lives[-1][label]
                cut = flat(told_at(self.plugin, temperature))
                if cut != cuts[-1]:
                    cuts.append(cut)

    def leave(self):
        self.plugin.close()
        self.is_connected = False

    def connect_again(self):
        self.leave()
        self.plugin.connection = next(_numbers)
        self.plugin.hello()
        self.is_connected = True
        self.report()


class Liar:
    """Another vLLM's plug-in, which writes in an engine's name whatever it likes."""

    def __init__(self, server):
        self.server, self.end, self.engine, self.of = server, None, None, None

    def hello(self, engine, **hello):
        if self.end is None or self.engine != engine:
            start = f"liar {next(_numbers)}"
        else:
            start = self.end.start

        self.close()
        self.engine = engine
        self.end = PluginEnd(
            self.server, next(_numbers), start=start, engine=int(engine), of=self.of, **hello
        )

    def tell(self, engine, temperature, *, requests=(), **counts):
        """Numbers of any size, which may be lower than those before."""
        if self.end is None or self.engine != engine:
            self.hello(engine)
        steps = [(1, {"steps": 10**6, "decodes": 10**6, "tokens": 10**7})]
        self.end.cells = {}
        self.end.serve(temperature, requests=len(requests), **counts)
        self.end.tick(steps=steps, finished=requests)

    def close(self):
        if self.end is not None:
            self.end.close()
            self.end = None


def told_at(plugin, temperature):
    """What a plug-in has counted at a temperature."""
    at_it = [tally_of(one) for key, one in plugin.cells.items() if key.temperature == temperature]
    return sum(at_it, NO_REQUESTS)


class Whose(RuleBasedStateMachine):
    """One vLLM of two engines, and three liars."""

    @initialize()
    def begin(self):
        self.server = Server(thresholds={"min_requests": 1}, server="1.0")
        self.process = 1.0
        self.engines = {name: Engine(self.server, name) for name in ENGINES}
        self.orphans = []  # engines that outlived their process of vLLM
        self.liars = [Liar(self.server) for _ in range(3)]
        self.exported = {}  # tallies by temperature, at the last poll that had a split
        self.finished = dict.fromkeys(TEMPERATURES, 0)
        self.drafted = dict.fromkeys(TEMPERATURES, 0)
        self.has_restarted = False
        self.pass_time((1.0,))

    # vLLM

    @rule(name=engines, label=labels, drafts=sizes, reports=st.booleans(), then=polls)
    def serve(self, *, name, label, drafts, reports, then):
        engine = self.engines[name]
        engine.plugin.serve(TEMPERATURES[label], requests=0, drafts=drafts)
        engine.counted += drafts
        self.drafted[label] += drafts
        if reports:
            engine.report()
        self.pass_time(then)

    @rule(name=engines, label=labels, then=polls)
    def finish(self, *, name, label, then):
        engine, request = self.engines[name], finished(TEMPERATURES[label], self.server.at)
        engine.plugin.serve(TEMPERATURES[label], drafts=10, accepted=20)
        engine.counted += 10
        self.drafted[label] += 10
        self.finished[label] += engine.is_connected
        engine.report(request)
        self.pass_time(then)

    @rule(name=engines, returns=st.booleans(), then=polls)
    def leave(self, name, returns, then):
        self.engines[name].leave()
        self.pass_time(then)
        if returns:
            self.engines[name].connect_again()

    @rule(name=engines, then=polls)
    def restart_engine(self, name, then):
        """vLLM's counters of it go on, as a data-parallel supervisor has it."""
        engine = self.engines[name]
        engine.plugin.close()
        engine.restart()
        self.has_restarted = True
        self.pass_time(then)

    @rule(outlives=st.booleans(), then=polls)
    def restart_vllm(self, outlives, then):
        self.process += 1
        self.server.server = str(self.process)
        for name, engine in self.engines.items():
            if outlives and self._is_known(name):
                self.orphans = [*self.orphans, engine][-2:]
            else:
                engine.plugin.close()
            self.engines[name] = Engine(self.server, name)
        self.has_restarted = True
        self.pass_time(then)

    @rule(which=st.integers(0, 1), label=labels, drafts=sizes, comes_back=st.booleans(), then=polls)
    def live_on(self, *, which, label, drafts, comes_back, then):
        """An orphan reports."""
        assume(len(self.orphans) > which)
        plugin = self.orphans[which].plugin
        if comes_back:
            self.orphans[which].connect_again()
        plugin.serve(TEMPERATURES[label], requests=0, drafts=drafts).tick()
        self.pass_time(then)

    # Liars

    @rule(
        liar=liars,
        engine=engines,
        of=ids,
        state=st.sampled_from(HelloState),
        speculation=st.sampled_from([None, EAGLE, OTHER_WAY]),
    )
    def lie_hello(self, *, liar, engine, of, state, speculation):
        self.liars[liar].of = of
        reason = "" if state is HelloState.OBSERVING else "x"
        self.liars[liar].hello(engine, state=state, reason=reason, speculation=speculation)

    @rule(liar=liars, engine=engines, label=labels, total=sizes, then=polls)
    def lie(self, *, liar, engine, label, total, then):
        """Numbers of any size."""
        self.liars[liar].tell(engine, TEMPERATURES[label], drafts=total, accepted=3 * total)
        self.pass_time(then)

    @rule(
        liar=liars,
        engine=engines,
        label=labels,
        requests=st.integers(1, 5),
        total=sizes,
        then=polls,
    )
    def lie_finished(self, *, liar, engine, label, requests, total, then):
        lie = finished(TEMPERATURES[label], self.server.at, accepted_tokens=30)
        self.liars[liar].tell(
            engine, TEMPERATURES[label], requests=(lie,) * requests, drafts=total, accepted=total
        )
        self.pass_time(then)

    @rule(liar=liars, engine=engines, label=labels, requests=st.integers(0, 2), then=polls)
    def copy(self, *, liar, engine, label, requests, then):
        """All that vLLM has counted, at another temperature."""
        counted = self.engines[engine].counted
        lie = finished(TEMPERATURES[label], self.server.at)
        self.liars[liar].tell(
            engine, TEMPERATURES[label], requests=(lie,) * requests, drafts=counted
        )
        self.pass_time(then)

    @rule(name=engines, drafts=sizes)
    def copy_id(self, name, drafts):
        """A container that has the id withholds the split while it is connected, and no more."""
        engine = self.engines[name]
        assume(engine.is_connected)
        copier = PluginEnd(self.server, next(_numbers), engine=int(name), speculation=OTHER_WAY)
        copier.serve(150, requests=0, drafts=drafts).tick()
        self.pass_time((1.0,))
        view = self.server.state.plugin.view.engine(EngineKey("m", name))
        assert view.no_split.code is NoSplitReason.SEVERAL_SENDERS
        assert not self.server.model().temperatures
        copier.close()

    @rule(name=engines)
    def calm(self, name):
        """A minute in which all engines report: the split is there, and complete."""
        for liar in self.liars:
            liar.close()
        for _ in range(8):
            for engine in self.engines.values():
                if not engine.is_connected:
                    engine.connect_again()
                engine.plugin.serve(TEMPERATURES["1+"], requests=0, drafts=20)
                engine.counted += 20
                self.drafted["1+"] += 20
                engine.report()
            self.pass_time((10.0,))
        model = self.server.model()
        assert model.no_split is None, name

    @rule(name=engines, returns=st.booleans(), then=polls)
    def crowd(self, name, returns, then):
        """So many connections that everyone else's are closed."""
        for engine in self.engines.values():
            engine.leave()
        for _ in range(40):
            PluginEnd(self.server, next(_numbers), engine=int(name)).close()
        self.pass_time(then)
        for engine in self.engines.values() if returns else ():
            engine.connect_again()

    # The sidecar

    @rule()
    def fail(self):
        self.server.fail()

    @rule(then=polls)
    def pass_time(self, then):
        for seconds in then:
            shown = [snap(name, engine.counted) for name, engine in self.engines.items()]
            self.server.poll(*shown, start=self.process, seconds=seconds)
            self._check()

    def _check(self):
        for shown in self.server.model().temperatures:
            lives = [
                life.get(shown.temperature, [NOTHING])
                for engine in self.engines.values()
                for life in engine.lives
            ]
            assert is_sum_of(flat(shown.tally), lives), shown.temperature
            assert shown.acceptances.count <= self.finished.get(shown.temperature, 0)
            assert shown.window.drafts <= self.drafted.get(shown.temperature, 0)
            before = self.exported.get(shown.temperature, NO_REQUESTS)
            assert self.has_restarted or not shown.tally.has_fallen(before), (
                f"{shown.temperature} fell"
            )
            self.exported[shown.temperature] = shown.tally
        self.has_restarted &= not self.server.model().temperatures

        for engine in self.server.model().engines:
            assert engine.speculation in {None, EAGLE}, "only the engine's own plug-in says it"

    @precondition(lambda self: hasattr(self, "engines"))
    @invariant()
    def memory_is_bounded(self):
        assert len(self.server.state.plugin.view.lives) <= 80

    def _is_known(self, name):
        lives = self.server.state.plugin
        start = self.engines[name].plugin.start
        return any(
            life.start == start and life.cut.total.drafts for life in lives.view.lives_of("m")
        )


def steps(examples):
    return settings(max_examples=examples, stateful_step_count=50, deadline=None)


TestWhose = Whose.TestCase
TestWhose.settings = steps(2)


@pytest.mark.slow
def test_many_more_orders():
    """As ``TestWhose``, 75 times as long."""
    run_state_machine_as_test(Whose, settings=steps(150))


if __name__ == "__main__":
    run_state_machine_as_test(Whose, settings=steps(int(sys.argv[1])))
