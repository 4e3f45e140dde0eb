"""What the plug-in must never do to vLLM.

Its faults and vLLM's, methods that it does not know, what it keeps.
"""

import ast
import inspect
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sidecar import __version__
from sidecar.demo.scheduler import SchedulerOutput
from sidecar.requests import plugin
from tests.requests.scheduler_double import OldScheduler, Scheduler, fresh, request

# A scheduler's connection is open for as long as the scheduler is there.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

PARTS = (
    "before_step",
    "count",
    "after_step",
    "follow",
    "end",
    "fold",
    "row",
    "go_on",
    "report",
    "send",
)


def life(scheduler, requests=6):
    """The statistics and outputs of vLLM's own methods over some requests' lives."""
    returned = []
    for number in range(requests):
        name = f"r{number}"
        scheduler.add_request(request(name))
        returned += [scheduler.step({name: result}) for result in ((0, 1), (3, 2), (3, 4))]
        scheduler.end(name, status="FINISHED_ABORTED")
    return returned


@pytest.mark.parametrize(
    ("part", "nth"), [*((part, nth) for part in PARTS for nth in (1, 4)), ("say", 1)]
)
@pytest.mark.parametrize("base", [Scheduler, OldScheduler])
def test_the_first_fault_disables_the_plugin_and_vllm_goes_on(
    base, part, nth, *, plain, installed, monkeypatch, caplog
):
    """Wherever it happens, and without the error's text, which may name a request."""
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
    assert [record.levelno for record in caplog.records if record.name == plugin.log.name].count(
        logging.ERROR
    ) == 1
    assert re.search(r": \w+: KeyError at line \d+$", caplog.text, re.MULTILINE)
    assert "the id of a request" not in caplog.text
    if not (part in ("say", "send") and nth == 1):  # else there is no connection yet
        plain.until(lambda: plain.only.state, "disabled")
        assert re.fullmatch(r"\w+: KeyError at line \d+", plain.only.hello["reason"])


@pytest.mark.parametrize("part", ["before_step", "count", "after_step", "end"])
def test_a_fault_that_cannot_even_be_logged_does_not_reach_vllm(part, installed, monkeypatch):
    """A log handler of vLLM's may raise, too."""

    def failing(*_):
        raise RuntimeError("a fault of ours, then of the log")

    scheduler = installed()()
    monkeypatch.setattr(plugin.log, "error", failing)
    monkeypatch.setattr(plugin.Observer, part, failing)
    failing.__name__ = part
    assert life(scheduler) == life(fresh(Scheduler)())
    assert scheduler._specdec is None


@pytest.mark.parametrize("base", [Scheduler, OldScheduler])
@pytest.mark.parametrize(
    "method", ["__init__", "make_spec_decoding_stats", "update_from_output", "_free_request"]
)
def test_vllms_own_exceptions_pass(base, method):
    """The engine core handles them; the plug-in has no part in it."""

    def broken(*_, **__):
        raise ZeroDivisionError(method)

    cls = fresh(base)
    broken.__signature__ = inspect.signature(getattr(cls, method))
    setattr(cls, method, broken)
    plugin.install(cls, "0.32.0", "/nowhere")
    with pytest.raises(ZeroDivisionError):
        life(cls())


def test_arguments_that_a_call_omits_have_vllms_own_defaults(socket_path):
    """Another caller of vLLM's methods may rely on them."""
    cls = fresh(Scheduler)
    cls.make_spec_decoding_stats.__defaults__ = (1, {"a": 2}, "a")
    cls.update_from_output.__defaults__ = (SimpleNamespace(req_id_to_index={}),)
    plugin.install(cls, "0.32.0", str(socket_path))
    scheduler = cls()
    scheduler.add_request(request("a"))
    stats = scheduler.make_spec_decoding_stats(None, 3)
    assert scheduler.update_from_output(SchedulerOutput())[0].outputs == []
    counted = (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens)
    known = scheduler.requests["a"]._specdec
    assert (known.drafts, known.draft_tokens, known.accepted_tokens) == counted == (1, 1, 1)


def test_arguments_and_results_are_passed_on_as_they_are(installed):
    """vLLM's connectors use what its methods return."""
    stats = installed()().make_spec_decoding_stats(None, 3, 1, None, "nobody")
    assert stats == fresh(Scheduler)().make_spec_decoding_stats(None, 3, 1, None, "nobody")
    scheduler = installed()()
    scheduler.add_request(request("a"))
    delayed = scheduler._free_request(scheduler.requests["a"], delay_free_blocks=True)
    assert (delayed, "a" in scheduler.requests) == (("transfer parameters", None), True)


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_an_unknown_signature_is_refused_and_nothing_is_wrapped(method, plain, socket_path):
    """A later vLLM may mean something else by the same name."""
    cls = fresh(Scheduler)
    own = getattr(cls, method)

    def changed(self, *args, new=None, **kwargs):
        return own(self, *args, **kwargs)

    setattr(cls, method, changed)
    before = {name: getattr(cls, name) for name in plugin.KNOWN}
    plugin.install(cls, "9.9", str(socket_path))
    assert {name: getattr(cls, name) for name in plugin.KNOWN} == before
    life(cls())
    plain.until(lambda: (plain.only.state, plain.only.reports), ("refused", 0))
    assert f"{method}(self args* new* kwargs*)" in plain.only.hello["reason"]


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_a_missing_method_is_named_in_the_refusal(method, plain, socket_path):
    """The page shows it to whoever has to ask for support of that vLLM."""
    construct = lambda self: vars(self).update(vars(Scheduler()))  # noqa: E731 - a constructor
    others = {name: getattr(Scheduler, name) for name in plugin.KNOWN if name != method}
    cls = type("Scheduler", (), {"__init__": construct, **others})
    plugin.install(cls, "9.9", str(socket_path))
    assert cls()._specdec is None
    plain.until(lambda: plain.only.state, "refused")
    assert f"{method}(missing)" in plain.only.hello["reason"]


def custom(base, method, *, calls_vllms, **config):
    """A scheduler of a subclass whose own ``method`` calls the base's, or only does the same."""

    def own(self, *args, **kwargs):
        inherited = getattr(base, method)
        return (inherited if calls_vllms else inherited.__wrapped__)(self, *args, **kwargs)

    return type("Custom", (base,), {method: own})(**config)


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_a_subclass_whose_method_calls_vllms_is_observed_once_a_step_with_drafts_shows_it(
    method, plain, installed, clock
):
    """Until then it may as well have a copy of its own, which nobody counts."""
    scheduler = custom(installed(), method, calls_vllms=True)
    plain.until(lambda: plain.only.state, "checking")
    assert plain.only.hello["reason"] == f"Custom has its own {method}"
    scheduler.add_request(request("a"))
    scheduler.step({"a": (0, 1)})
    assert (scheduler._specdec.state, plain.only.reports) == ("checking", 0)
    plain.die()
    plain.live_again()
    for _ in range(3):  # it notices, connects, and says it again
        clock.at += 1
        scheduler.step({"a": (0, 1)})
    plain.until(lambda: min(plain.only.hellos, 2), 2)
    assert (plain.only.state, plain.only.hello["reason"]) == (
        "checking",
        f"Custom has its own {method}",
    )
    scheduler.step({"a": (3, 2)})
    assert scheduler._specdec.state == "observing"
    clock.at += 1
    scheduler.requests["a"].max_tokens = 7
    scheduler.step({"a": (3, 1)})
    assert (scheduler._specdec.own, scheduler._specdec.requests) == ([], {})
    assert life(scheduler) == life(fresh(Scheduler)())
    plain.until(lambda: (plain.total, plain.only.state), (scheduler.counted, "observing"))


def test_what_is_kept_while_a_class_is_checked_does_not_grow_with_its_requests(installed, plain):
    """A class that never drafts may be checked for ever; afterwards nothing is missing."""
    scheduler = custom(installed(), "_free_request", calls_vllms=True)
    for number in range(50):
        name = f"r{number}"
        scheduler.add_request(request(name, max_tokens=2))
        scheduler._specdec.due = 0.0
        scheduler.step({name: (0, 1)})
        scheduler.step({name: (0, 1)})
        # A full socket would be closed, and its hellos might be read after those of the next one.
        plain.until(lambda told=2 * (number + 1): plain.only.hellos >= told, expected=True)
    observer = scheduler._specdec
    waiting = sum(len(growth.ended) for growth in observer.growth_by_key.values())

    assert (observer.state, waiting) == ("checking", 0)

    scheduler.add_request(request("a"))
    scheduler.step({"a": (0, 1)})
    scheduler.step({"a": (3, 2)})
    scheduler.end("a")

    def told():
        scheduler.step({})  # a step of an idle engine reports, and connects if it has to
        return plain.only.state

    plain.until(told, "observing")
    plain.until(lambda: plain.only.total.get("stopped", 0) + plain.only.total.get("length", 0), 51)


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_a_subclass_with_a_copy_of_a_method_is_refused_with_the_reason(
    method, plain, installed, caplog
):
    """Its requests would be missing from the totals."""
    scheduler, own = custom(installed(), method, calls_vllms=False), fresh(Scheduler)()
    for each in (scheduler, own):
        each.add_request(request("a", max_tokens=4))
    for results in ({"a": (0, 1)}, {"a": (3, 2)}, {"a": (3, 3)}):
        assert scheduler.step(results) == own.step(results)
    assert life(scheduler) == life(own)
    assert scheduler._specdec is None
    plain.until(lambda: plain.only.state, "refused")
    assert plain.only.hello["reason"] == f"Custom has its own {method}, which does not call vLLM's"
    assert plain.only.hello["reason"] in caplog.text


@pytest.mark.parametrize("method", ["update_from_output", "_free_request"])
@pytest.mark.parametrize(("calls_vllms", "state"), [(True, "observing"), (False, "refused")])
def test_without_speculation_the_first_end_shows_whether_a_subclass_calls_vllms_method(
    method, calls_vllms, state, plain, installed
):
    """There are no drafts to show it."""
    scheduler = custom(installed(), method, calls_vllms=calls_vllms, depth=0)
    scheduler.add_request(request("a", max_tokens=2))
    for _ in range(2):
        assert scheduler._specdec.state == "checking"
        scheduler.step({"a": (0, 1)})
    assert (scheduler._specdec is not None) is calls_vllms
    plain.until(lambda: plain.only.state, state)


def test_a_subclass_that_overrides_nothing_wrapped_is_observed(plain, installed):
    """As vLLM's own AsyncScheduler is."""

    class Async(installed()):
        def __init__(self):
            super().__init__()
            self.more = True

    scheduler = Async()
    life(scheduler)
    plain.until(lambda: plain.total, scheduler.counted)


def test_nothing_grows_with_the_number_of_requests(installed):
    """With no sidecar at all, where everything waits."""
    scheduler = installed()()
    life(scheduler, plugin.MAX_FINISHED + 10)
    observer = scheduler._specdec
    sizes = {name: len(held) for name, held in vars(observer).items() if hasattr(held, "__len__")}
    life(scheduler, 50)
    assert {
        name: len(held) for name, held in vars(observer).items() if hasattr(held, "__len__")
    } == sizes
    assert observer.lost == 60
    assert not observer.starting


@pytest.fixture
def starts(monkeypatch):
    """Makes this process look like one of vLLM's that has imported what workers import."""

    def start(*, parent, **environment):
        processes = SimpleNamespace(parent_process=lambda: parent)
        monkeypatch.setitem(sys.modules, "multiprocessing.process", processes)
        monkeypatch.setitem(sys.modules, "vllm.v1.worker.worker_base", SimpleNamespace())
        for name in ("WORKER_MULTIPROC_METHOD", "ENABLE_V1_MULTIPROCESSING"):
            monkeypatch.delenv(f"VLLM_{name}", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(f"VLLM_{name}", value)

    return start


@pytest.mark.parametrize("process", ["worker", "API server", "model inspection"])
def test_a_process_without_a_scheduler_imports_nothing(process, starts, monkeypatch, caplog):
    """An import of vLLM's scheduler would slow the start of every worker, and ``--help``."""
    if process == "worker":
        starts(parent=object())
    elif process == "API server":
        starts(parent=None, WORKER_MULTIPROC_METHOD="spawn")
    else:
        spec = SimpleNamespace(name="vllm.model_executor.models.registry")
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setitem(sys.modules, "vllm", None)  # an import of it fails, which would be logged
    plugin.register()
    assert plugin.log.name not in {record.name for record in caplog.records}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORKER_MULTIPROC_METHOD": "fork"},
        {"WORKER_MULTIPROC_METHOD": "spawn", "ENABLE_V1_MULTIPROCESSING": "0"},
    ],
)
def test_the_process_that_may_fork_the_engine_core_or_be_it_has_a_scheduler(environment, starts):
    """vLLM loads no plug-in again in either."""
    starts(parent=None, **environment)
    assert not plugin.has_no_scheduler()


def test_register_never_raises(monkeypatch, caplog):
    """vLLM would not start."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    plugin.register()
    assert "cannot observe this vLLM" in caplog.text


def test_register_wraps_vllms_scheduler(monkeypatch):
    """Once, however often vLLM loads its plug-ins."""
    cls = fresh(Scheduler)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0", __path__=[]))
    for name in ("vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", SimpleNamespace(Scheduler=cls))
    plugin.register()
    plugin.register()
    assert cls._specdec is None
    assert cls.update_from_output.__wrapped__.__code__ is Scheduler.update_from_output.__code__


def test_the_file_needs_only_the_standard_library():
    """It runs in images of which nothing else is known, from Python 3.9 on."""
    text = Path(plugin.__file__).read_text()

    assert __version__ == plugin.VERSION
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in imported} - {
        "vllm",
        "specdec_doctor",
    } <= sys.stdlib_module_names
    assert not imported & {"threading", "asyncio", "subprocess", "multiprocessing"}
