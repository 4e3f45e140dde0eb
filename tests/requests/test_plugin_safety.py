"""What the plug-in must never do to vLLM.

Its faults and vLLM's, methods that it does not know, what it keeps.
"""

import ast
import functools
import inspect
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sidecar import __version__
from sidecar.requests import plugin
from specdec_tools.demo.scheduler import SchedulerOutput
from tests.requests.scheduler_double import COUNTING, METHODS, Scheduler, fresh
from tests.requests.scheduler_double import request as made_request

WRAPPED = ("before_schedule", "before_step", "after_step", "end")  # named as what failed
PARTS = (
    *((plugin.Observer, part) for part in ("before_step", "after_step", "follow", "end")),
    *((plugin.Observer, part) for part in ("take_started", "sample_context", "cell_of", "note")),
    *((plugin.Report, part) for part in ("go_on", "begin", "send_packet")),
    (plugin.Link, "send"),
)


def life(scheduler, requests=6):
    """The statistics and outputs of vLLM's own methods over some requests' lives."""
    returned = []
    for number in range(requests):
        name = f"r{number}"
        scheduler.add_request(made_request(name))
        returned += [scheduler.step({name: result}) for result in ((0, 1), (3, 2), (3, 4))]
        scheduler.end(name, status="FINISHED_ABORTED")
    return returned


@pytest.mark.parametrize(
    ("owner", "part", "nth"),
    [
        *((owner, part, nth) for owner, part in PARTS for nth in (1, 4)),
        (plugin.Observer, "interrupt", 4),
        (plugin.Observer, "say", 1),
        (plugin.Observer, "__init__", 1),
        (plugin.Link, "connect", 1),
    ],
)
def test_the_first_fault_disables_the_plugin_and_vllm_goes_on(
    owner, part, nth, *, plain, installed, monkeypatch, caplog
):
    """Wherever it happens, and without the error's text, which may name a request."""
    own, calls = getattr(owner, part), []

    def failing(self, *args, **kwargs):
        calls.append(part)
        if len(calls) == nth:
            raise KeyError("the id of a request")
        return own(self, *args, **kwargs)

    monkeypatch.setattr(owner, part, failing)
    expected = life(fresh(Scheduler)())
    scheduler = installed()()
    with caplog.at_level(logging.ERROR):
        assert life(scheduler) == expected
    assert len(calls) >= nth
    assert scheduler._specdec is None
    assert [record.levelno for record in caplog.records if record.name == plugin.log.name].count(
        logging.ERROR
    ) == 1
    assert re.search(r": \w+: KeyError at line \d+$", caplog.text, re.MULTILINE)
    assert "the id of a request" not in caplog.text
    if part == "__init__":
        return
    observer = scheduler._specdec_link
    assert not observer.starting, "it holds no request of vLLM's"
    if not (part in ("say", "send", "connect") and nth == 1):  # else there is no connection yet
        plain.until(lambda: plain.only.state, "disabled")
        reason = plain.only.hello["reason"]
        assert re.fullmatch(r"\w+: KeyError at line \d+", reason)
        assert part not in WRAPPED or reason.startswith(f"{part}:")


def test_a_fault_as_vllm_schedules_does_not_reach_it(installed, monkeypatch, caplog):
    scheduler = installed()()
    monkeypatch.setattr(plugin.Observer, "before_schedule", lambda self: 1 / 0)
    scheduler.add_request(made_request("a"))
    output = scheduler.schedule()

    assert [new.req_id for new in output.scheduled_new_reqs] == ["a"]
    assert scheduler._specdec is None
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("part", ["before_step", "note", "after_step", "end"])
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


def scheduled(scheduler):
    """Its life, and one more step that is scheduled."""
    life(scheduler)
    scheduler.schedule()


@pytest.mark.parametrize("method", ["__init__", *METHODS])
def test_vllms_own_exceptions_pass(method):
    """The engine core handles them; the plug-in has no part in it."""

    def broken(*_, **__):
        raise ZeroDivisionError(method)

    cls = fresh(Scheduler)
    broken.__signature__ = inspect.signature(getattr(cls, method))
    setattr(cls, method, broken)
    plugin.install(cls, "0.32.0", "/nowhere")
    with pytest.raises(ZeroDivisionError):
        scheduled(cls())


def test_arguments_that_a_call_omits_have_vllms_own_defaults(socket_path):
    """Another caller of vLLM's methods may rely on them."""
    cls = fresh(Scheduler)
    cls.make_spec_decoding_stats.__defaults__ = (1, {"a": 2}, "a")
    cls.update_from_output.__defaults__ = (SimpleNamespace(req_id_to_index={}),)
    plugin.install(cls, "0.32.0", str(socket_path))
    scheduler = cls()
    scheduler.add_request(made_request("a"))
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
    assert scheduler.schedule().num_scheduled_tokens == {}
    scheduler.add_request(made_request("a"))
    delayed = scheduler._free_request(scheduler.requests["a"], delay_free_blocks=True)
    assert (delayed, "a" in scheduler.requests) == (("transfer parameters", None), True)


class Compiled:
    """A callable whose parameters ``inspect`` cannot tell, on any Python."""

    @property
    def __signature__(self):
        raise ValueError("no signature found")

    def __call__(self, *arguments, **named):
        raise NotImplementedError


def test_a_method_without_a_readable_signature_is_refused_and_the_sidecar_is_told(
    plain, socket_path
):
    """As of a scheduler that was compiled."""
    cls = fresh(Scheduler)
    cls.update_from_output = Compiled()
    plugin.install(cls, "9.9", str(socket_path))
    cls()
    plain.until(lambda: plain.only.state, "refused")
    assert "update_from_output(unreadable)" in plain.only.hello["reason"]


@pytest.mark.parametrize("method", list(plugin.KNOWN))
def test_an_unknown_signature_is_refused_and_nothing_is_wrapped(method, plain, socket_path, caplog):
    """A later vLLM may mean something else by the same name. vLLM's log says which, too."""
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
    assert f"{method}(self args* new* kwargs*)" in caplog.text


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


@pytest.mark.parametrize("method", COUNTING)
@pytest.mark.parametrize("calls_vllms", [True, False])
def test_a_subclass_with_a_method_of_its_own_is_observed_and_the_hello_names_it(
    method, calls_vllms, plain, installed
):
    """Whether that calls vLLM's shows in the totals, which the sidecar compares."""
    scheduler = custom(installed(), method, calls_vllms=calls_vllms)

    assert life(scheduler) == life(fresh(Scheduler)())
    plain.until(lambda: (plain.only.state, plain.only.hello.get("own")), ("observing", [method]))
    if calls_vllms:
        plain.until(lambda: (plain.total, len(plain.only.done)), (scheduler.counted, 6))


@pytest.mark.parametrize("method", ["make_spec_decoding_stats", "_free_request"])
def test_what_a_subclass_does_in_place_of_vllms_method_is_missing_from_the_counts(
    method, plain, installed
):
    """And nothing is counted that vLLM has not: so the comparison tells."""
    scheduler = custom(installed(), method, calls_vllms=False)
    life(scheduler)

    plain.until(lambda: plain.only.end.get("steps"), 18)
    drafts, requests = plain.only.totals()[0], plain.only.sums("temperature")[0]
    assert (drafts, requests) == ((0, 6) if method != "_free_request" else (12, 0))


def test_installing_twice_wraps_once(installed, socket_path):
    """Each process of vLLM's may load its plug-ins several times."""
    cls = installed()
    wrapped = {name: getattr(cls, name) for name in ("__init__", *METHODS)}
    plugin.install(cls, "0.32.0", str(socket_path))

    assert {name: getattr(cls, name) for name in wrapped} == wrapped
    for name, method in wrapped.items():
        assert method.__wrapped__.__code__ is getattr(Scheduler, name).__code__


def wrapped_by_another(cls, method, *, is_told):
    """Another plug-in has wrapped the method, and told of it by functools.wraps or not."""
    own = getattr(cls, method)

    def other(self, *args, **kwargs):
        return own(self, *args, **kwargs)

    setattr(cls, method, functools.wraps(own)(other) if is_told else other)


@pytest.mark.parametrize("method", COUNTING)
@pytest.mark.parametrize("is_told", [True, False])
def test_what_another_plugin_wraps_later_is_named_and_its_counts_are_right(
    method, is_told, plain, installed
):
    """It calls the wrapper, as a subclass may."""
    cls = installed()
    wrapped_by_another(cls, method, is_told=is_told)
    scheduler = cls()

    assert life(scheduler) == life(fresh(Scheduler)())
    plain.until(lambda: (plain.total, len(plain.only.done)), (scheduler.counted, 6))
    assert (plain.only.state, plain.only.hello["own"]) == ("observing", [method])


@pytest.mark.parametrize("method", list(plugin.KNOWN))
@pytest.mark.parametrize(("is_told", "state"), [(True, "observing"), (False, "refused")])
def test_what_another_plugin_has_wrapped_before_is_known_by_its_parameters(
    method, is_told, state, plain, socket_path
):
    """With functools.wraps they are vLLM's."""
    cls = fresh(Scheduler)
    wrapped_by_another(cls, method, is_told=is_told)
    plugin.install(cls, "0.32.0", str(socket_path))
    scheduler = cls()

    assert life(scheduler) == life(fresh(Scheduler)())
    plain.until(lambda: plain.only.state, state)
    if is_told:
        plain.until(lambda: (plain.total, len(plain.only.done)), (scheduler.counted, 6))


def test_a_subclass_that_overrides_nothing_wrapped_is_observed(plain, installed):
    """As vLLM's own AsyncScheduler is."""

    class Async(installed()):
        def __init__(self):
            super().__init__()
            self.more = True

    scheduler = Async()
    life(scheduler)
    plain.until(lambda: plain.total, scheduler.counted)
    assert plain.only.hello["own"] == []


def held(observer):
    """How much an observer keeps in each of its parts, and in its report's."""
    return {
        (type(owner).__name__, name): len(part)
        for owner in (observer, observer.report)
        for name, part in vars(owner).items()
        if hasattr(part, "__len__")
    }


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_grows_with_the_number_of_requests(is_there, installed, request, monkeypatch):
    """With no sidecar at all, where everything waits, and with one."""
    monkeypatch.setattr(plugin, "MAX_FINISHED", 100)
    plain = request.getfixturevalue("plain") if is_there else None
    scheduler = installed()()
    life(scheduler, 110)
    observer = scheduler._specdec
    sizes = held(observer)
    life(scheduler, 50)

    assert held(observer) == sizes
    assert not observer.starting
    if plain is None:
        assert observer.lost == 60
        assert len(observer.finished) == 100
    else:
        plain.until(lambda: len(plain.only.done), 160)


def test_combinations_of_keys_are_bounded_without_a_sidecar(installed):
    """However many clients try: the limit, and one for each temperature, and of our own requests.

    Steps have as many as there are loads.
    """
    scheduler = installed()()
    for number in range(3 * plugin.MAX_CELLS):
        own = "specdec-own-" if number % 2 else ""
        name = f"r{own}{number}"
        scheduler.add_request(made_request(name, number % 300 / 100, adapter=f"t{number}"))
        scheduler.step({name: (3, 1)})
        scheduler.end(name)
    observer = scheduler._specdec

    assert plugin.MAX_CELLS < len(observer.request_cells) <= plugin.MAX_CELLS + 2 * 203
    assert len(observer.changed) == len(observer.request_cells) + len(observer.step_cells)


def test_the_file_needs_only_the_standard_library():
    """It runs in images of which nothing else is known, from Python 3.9 on.

    Of multiprocessing it asks only what this process is.
    """
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
    assert not imported & {"threading", "asyncio", "subprocess", "prometheus_client", "ray"}


def test_a_scheduler_that_frees_requests_itself_has_none_held_on_to(installed):
    """It is named in the hello, and the sidecar withholds what it counts otherwise."""

    class Own(installed()):
        def _free_request(self, request, delay_free_blocks=False):
            self.requests.pop(request.request_id)

    scheduler = Own()
    for number in range(5):
        name = f"r{number}"
        scheduler.add_request(made_request(name))
        scheduler.step({name: (0, 0)})
        scheduler.end(name, status="FINISHED_ABORTED")
    assert (scheduler._specdec is not None, scheduler._specdec.starting) == (True, {})
