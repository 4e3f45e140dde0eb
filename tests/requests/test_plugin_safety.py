"""What the plug-in must never do to vLLM: its faults and vLLM's, methods that it does not know, what it keeps."""

import ast
import inspect
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sidecar import __version__
from sidecar.requests import plugin
from tests.requests.scheduler_double import OldScheduler, Scheduler, fresh, request

# A scheduler's connection is open for as long as the scheduler is there.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

PARTS = ("before_step", "count", "after_step", "follow", "end", "settle", "add", "go_on", "report", "send")


def life(scheduler, requests=6):
    """What vLLM's own methods return over some requests' lives."""
    returned = []
    for number in range(requests):
        name = f"r{number}"
        scheduler.add(request(name))
        returned += [scheduler.step({name: (0, 1)}), scheduler.step({name: (3, 2)}), scheduler.step({name: (3, 4)})]
        returned.append(scheduler.end(name, status="FINISHED_ABORTED"))
    return returned


@pytest.mark.parametrize(("part", "nth"), [*((part, nth) for part in PARTS for nth in (1, 4)), ("say", 1)])
@pytest.mark.parametrize("base", [Scheduler, OldScheduler])
def test_its_first_fault_takes_it_out_and_vllm_goes_on(base, part, nth, *, plain, installed, monkeypatch, caplog):
    own, calls = getattr(plugin.Observer, part), []

    def failing(self, *args, **kwargs):
        calls.append(part)
        if len(calls) == nth:
            raise KeyError("the id of a request")
        return own(self, *args, **kwargs)

    monkeypatch.setattr(plugin.Observer, part, failing)
    expected = life(fresh(base)())
    scheduler = installed(base)()
    with caplog.at_level(logging.ERROR):
        assert life(scheduler) == expected
    assert len(calls) >= nth
    assert scheduler._specdec is None
    assert not scheduler._specdec_link.starting, "it holds no request of vLLM's"
    assert scheduler._specdec_link.slices is None
    assert [record.levelno for record in caplog.records if record.name == plugin.log.name].count(logging.ERROR) == 1
    assert re.search(r": \w+: KeyError at line \d+$", caplog.text, re.MULTILINE)
    assert "the id of a request" not in caplog.text
    if not (part in ("say", "send") and nth == 1):  # else there is no connection yet
        plain.until(lambda: plain.engines and plain.only.hello["state"] == "disabled")
        assert re.fullmatch(r"\w+: KeyError at line \d+", plain.only.hello["reason"])


@pytest.mark.parametrize("part", ["before_step", "count", "after_step", "end"])
def test_a_fault_that_cannot_even_be_logged_does_not_reach_vllm(part, installed, monkeypatch):
    def failing(*_):
        raise RuntimeError("a fault of ours, then of the log")

    scheduler = installed()()
    monkeypatch.setattr(plugin.log, "error", failing)
    monkeypatch.setattr(plugin.Observer, part, failing)
    failing.__name__ = part
    assert life(scheduler) == life(fresh(Scheduler)())
    assert scheduler._specdec is None


@pytest.mark.parametrize("base", [Scheduler, OldScheduler])
@pytest.mark.parametrize("method", ["__init__", "make_spec_decoding_stats", "update_from_output", "_free_request"])
def test_vllms_own_exceptions_pass(base, method):
    def broken(*_, **__):
        raise ZeroDivisionError(method)

    cls = fresh(base)
    broken.__signature__ = inspect.signature(getattr(cls, method))
    setattr(cls, method, broken)
    plugin.install(cls, "0.32.0", "/nowhere")
    with pytest.raises(ZeroDivisionError):
        life(cls())


def test_what_a_call_leaves_out_vllms_own_defaults_are(socket_path):
    cls = fresh(Scheduler)
    cls.make_spec_decoding_stats.__defaults__ = (1, {"a": 2}, "a")
    cls.update_from_output.__defaults__ = (None,)
    plugin.install(cls, "0.32.0", str(socket_path))
    scheduler = cls()
    scheduler.add(request("a"))
    assert scheduler.make_spec_decoding_stats(None, 3) == [1, 1, 1]
    nothing = SimpleNamespace(scheduled_new_reqs=[], num_scheduled_tokens={}, scheduled_spec_decode_tokens={})
    assert scheduler.update_from_output(nothing)[0].outputs == []
    total = scheduler._specdec.total
    assert [total.drafts, total.draft_tokens, total.accepted_tokens] == scheduler.counted


def test_arguments_and_results_are_passed_on_as_they_are(installed):
    scheduler = installed()()
    assert scheduler.make_spec_decoding_stats(None, 3, 1, None, "nobody") == [1, 3, 1]
    scheduler = installed()()
    one = request("a")
    scheduler.add(one)
    assert scheduler._free_request(one, delay_free_blocks=True) == ("transfer parameters", None)
    assert "a" in scheduler.requests


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_a_signature_that_it_does_not_know_is_not_wrapped(method, plain, socket_path):
    cls = fresh(Scheduler)
    own = getattr(cls, method)

    def changed(self, *args, new=None, **kwargs):
        return own(self, *args, **kwargs)

    setattr(cls, method, changed)
    before = {name: getattr(cls, name) for name in plugin.KNOWN}
    plugin.install(cls, "9.9", str(socket_path))
    assert {name: getattr(cls, name) for name in plugin.KNOWN} == before
    life(cls())
    plain.until(lambda: plain.engines)
    assert plain.only.hello["state"] == "refused"
    assert f"{method}(self args* new* kwargs*)" in plain.only.hello["reason"]
    assert plain.only.reports == 0


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_a_method_that_is_not_there_is_said(method, plain, socket_path):
    cls = type(
        "Scheduler", (), {name: getattr(Scheduler, name) for name in ("__init__", *plugin.KNOWN) if name != method}
    )
    plugin.install(cls, "9.9", str(socket_path))
    assert cls()._specdec is None
    plain.until(lambda: plain.engines)
    assert f"{method}(missing)" in plain.only.hello["reason"]


def custom(base, method, *, calls_vllms, **config):
    """A scheduler of a subclass whose own ``method`` calls the base's, or only does the same."""

    def own(self, *args, **kwargs):
        inherited = getattr(base, method)
        return (inherited if calls_vllms else inherited.__wrapped__)(self, *args, **kwargs)

    return type("Custom", (base,), {method: own})(**config)


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_a_subclass_whose_own_method_calls_vllms_is_observed_once_a_step_with_drafts_has_shown_it(
    method, plain, installed
):
    scheduler = custom(installed(), method, calls_vllms=True)
    plain.until(lambda: plain.engines)
    assert (plain.only.hello["state"], plain.only.hello["reason"]) == ("checking", f"Custom has its own {method}")
    scheduler.add(request("a"))
    scheduler.step({"a": (0, 1)})
    assert (scheduler._specdec.state, plain.only.reports) == ("checking", 0)
    plain.die()
    plain.live_again()
    for _ in range(3):  # it notices, connects, and says it again
        scheduler._specdec.due = 0.0
        scheduler.step({"a": (0, 1)})
    plain.until(lambda: plain.only.hellos >= 2)
    assert (plain.only.hello["state"], plain.only.hello["reason"]) == ("checking", f"Custom has its own {method}")
    scheduler.step({"a": (3, 2)})
    assert scheduler._specdec.state == "observing"
    scheduler.requests["a"].max_tokens = 4
    scheduler.step({"a": (3, 1)})
    assert (scheduler._specdec.own, scheduler._specdec.requests) == ([], {})
    assert life(scheduler) == life(fresh(Scheduler)())
    plain.until(lambda: plain.total == tuple(scheduler.counted) and plain.only.hello["state"] == "observing")


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_a_subclass_with_a_copy_of_a_method_is_refused_in_words(method, plain, installed, caplog):
    scheduler, own = custom(installed(), method, calls_vllms=False), fresh(Scheduler)()
    for each in (scheduler, own):
        one = request("a")
        one.max_tokens = 4
        each.add(one)
    for results in ({"a": (0, 1)}, {"a": (3, 2)}, {"a": (3, 3)}):
        assert scheduler.step(results) == own.step(results)
    assert life(scheduler) == life(own)
    assert scheduler._specdec is None
    plain.until(lambda: plain.engines and plain.only.hello["state"] == "refused")
    assert plain.only.hello["reason"] == f"Custom has its own {method}, which does not call vLLM's"
    assert plain.only.hello["reason"] in caplog.text


@pytest.mark.parametrize("method", ["update_from_output", "_free_request"])
@pytest.mark.parametrize("calls_vllms", [True, False])
def test_without_speculation_the_first_end_tells(method, calls_vllms, plain, socket_path):
    cls = fresh(Scheduler)
    plugin.install(cls, "9.9", str(socket_path))
    scheduler, one = custom(cls, method, calls_vllms=calls_vllms, depth=0, speculative=None), request("a")
    one.max_tokens = 2
    scheduler.add(one)
    for _ in range(2):
        assert scheduler._specdec.state == "checking"
        scheduler.step({"a": (0, 1)})
    assert (scheduler._specdec is not None) is calls_vllms
    plain.until(lambda: plain.engines and plain.only.hello["state"] == ("observing" if calls_vllms else "refused"))


def test_a_subclass_that_overrides_nothing_wrapped_is_observed(plain, installed):
    class Async(installed()):
        def __init__(self):
            super().__init__()
            self.more = True

    scheduler = Async()
    life(scheduler)
    plain.until(lambda: plain.total == tuple(scheduler.counted))


def test_nothing_grows_with_the_number_of_requests(installed):
    """With no sidecar at all, where everything waits."""
    scheduler = installed()()
    life(scheduler, plugin.MAX_FINISHED + 10)
    observer = scheduler._specdec
    sizes = {name: len(held) for name, held in vars(observer).items() if hasattr(held, "__len__")}
    life(scheduler, 50)
    assert {name: len(held) for name, held in vars(observer).items() if hasattr(held, "__len__")} == sizes
    assert observer.lost == 60
    assert not observer.starting


def test_in_a_worker_it_imports_nothing(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.worker_base", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import of it fails, which would be logged
    plugin.register()
    assert plugin.log.name not in {record.name for record in caplog.records}


def test_where_vllm_inspects_a_model_class_it_imports_nothing(monkeypatch, caplog):
    spec = SimpleNamespace(name="vllm.model_executor.models.registry")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import of it fails, which would be logged
    plugin.register()
    assert plugin.log.name not in {record.name for record in caplog.records}


def test_register_never_raises(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    plugin.register()
    assert "cannot observe this vLLM" in caplog.text


def test_register_wraps_vllms_scheduler(monkeypatch):
    cls = fresh(Scheduler)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0", __path__=[]))
    for name in ("vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", SimpleNamespace(Scheduler=cls))
    plugin.register()
    plugin.register()
    assert cls._specdec is None
    assert cls.update_from_output.__wrapped__.__code__ is Scheduler.update_from_output.__code__


def test_the_file_is_what_it_promises_to_be():
    text = Path(plugin.__file__).read_text()
    assert len(text.splitlines()) <= 441
    assert __version__ == plugin.VERSION
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in imported} - {"vllm", "specdec_doctor"} <= sys.stdlib_module_names
    assert not imported & {"threading", "asyncio", "subprocess", "multiprocessing"}
