"""Other plug-ins that wrap the same methods, before ours and after it."""

import functools
from itertools import product

import pytest

from tests.scheduler.engine import Engine, Scheduler, make_scheduler
from tests.scheduler.test_counts import equal_to_the_token, random_traffic

METHODS = ("update_from_output", "make_spec_decoding_stats", "_free_request", "schedule")


def wrap(name, calls, *, tells):
    """What another plug-in does; with ``tells`` its wrapper has the signature of vLLM's method."""
    own = getattr(Scheduler, name)

    def wrapper(self, *args, **kwargs):
        calls.append(name)
        return own(self, *args, **kwargs)

    setattr(Scheduler, name, functools.wraps(own)(wrapper) if tells else wrapper)


OTHERS = [*product(METHODS, ("before", "after"), (True, False))]
NAMES = [f"{name} {order} {'with' if tells else 'without'} wraps" for name, order, tells in OTHERS]


@pytest.mark.parametrize("other", OTHERS, ids=NAMES)
def test_both_work_or_ours_says_that_it_does_not(other, installed, sidecar, clock):
    name, order, tells = other
    calls = []
    if order == "after":
        installed()
    wrap(name, calls, tells=tells)
    if order == "before":
        installed()
    engine = Engine(make_scheduler(), clock=clock)
    random_traffic(engine, requests=20)

    assert calls
    sidecar.until(lambda: sidecar.engine().state in {"observing", "refused"})
    if sidecar.engine().state == "refused":
        assert (order, tells) == ("before", False)
        assert name in sidecar.engine().reason
        assert sidecar.engine().totals == (0, 0, 0)
    else:
        equal_to_the_token(sidecar, engine)


@pytest.mark.parametrize("order", ["before", "after"])
def test_an_exception_of_another_plugin_reaches_vllm_as_without_ours(
    order, installed, sidecar, clock
):
    def broken(self, *args, **kwargs):
        raise LookupError

    if order == "after":
        installed()
    Scheduler.update_from_output = functools.wraps(Scheduler.update_from_output)(broken)
    if order == "before":
        installed()
    engine = Engine(make_scheduler(), clock=clock)
    engine.add("r")
    with pytest.raises(LookupError):
        engine.run()


def test_found_twice_it_counts_once(installed, sidecar, clock, path):
    from tests.scheduler.conftest import load

    installed()
    wrapped = Scheduler.update_from_output
    load().install(Scheduler, "again", str(path))
    assert Scheduler.update_from_output is wrapped
    engine = Engine(make_scheduler(), clock=clock)
    random_traffic(engine, requests=20)
    equal_to_the_token(sidecar, engine)


def test_a_fault_of_ours_disables_it_and_nothing_else(installed, sidecar, clock, plugin):
    """The requests end as they would, and the sidecar knows."""
    installed()
    engine = Engine(make_scheduler(), clock=clock)
    engine.add("r", max_tokens=30)
    engine.run(5)
    sidecar.until(lambda: sidecar.engine().state, "observing")
    plugin.time = None
    engine.run()
    assert engine.told.outputs["r"] == 30
    sidecar.until(lambda: sidecar.engine().state, "disabled")
