"""Counts inside vLLM's scheduler what each request drafts and accepts, and tells the sidecar.

vLLM loads this file as a plug-in (entry point ``specdec`` of ``vllm.general_plugins``) and calls
``register()`` in each of its processes. The file is best read from top to bottom:

1. **Where it starts**: which processes of vLLM it observes, and the random id of the server.
2. **What it wraps**: five methods of vLLM's ``Scheduler``. Each wrapper calls vLLM's own method
   once with the same arguments, returns its result and lets its exceptions through.
3. **When it gives up**: everything else is inside ``try``. The first error disables the plug-in for
   good, with one line in the log. If it does not know a scheduler's methods, it wraps only the
   constructor and ``schedule``. In both cases it counts nothing, and only tells the sidecar so.
4. **What it counts**: integers that only grow, by what requests and steps have in common, and one
   small record per finished request. It changes nothing in a request but its own attribute
   ``_specdec``, and what it keeps is bounded.
5. **What it sends**: hellos and reports, as JSON, to one Unix socket, from which it never reads. No
   text, token or id of a request leaves the process.
6. **What it reads of vLLM's configuration** for the hello.

It starts no thread, waits for nothing, and needs only Python's standard library.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import multiprocessing
import os
import select
import socket
import struct
import sys
import time
import traceback
import weakref
from collections import deque
from contextlib import suppress
from itertools import chain, islice
from math import ceil
from operator import add, attrgetter
from pathlib import Path
from typing import Any

VERSION = "0.1.0"  # of the sidecar that wrote this file
FORMAT = 4  # of the packets
SOCKET = os.environ.get("SPECDEC_PLUGIN__SOCKET") or "/run/specdec/plugin.sock"

log = logging.getLogger("vllm.specdec_plugin")  # logs where and how vLLM logs its own lines

# -------------------------------------------------------------------------------------------------
# 1. Where it starts
# -------------------------------------------------------------------------------------------------

# The variable in which vLLM's first process hands the server's id to the others. With the value
# OFF, there is no id.
SERVER = "SPECDEC_SERVER_ID"
OFF = "off"
MAX_ID = 64  # characters
GAUGE = "specdec_server_info"  # has the id on vLLM's page; vLLM unregisters names with "vllm"


def register() -> None:
    """Observes vLLM's Scheduler, if this process may have one, and gives the server its id.

    vLLM calls it in each of its processes, the first one included, before it starts the others. It
    never raises, since vLLM would then not start.
    """
    try:
        program = getattr(sys.modules["__main__"], "__spec__", None)
        if program is not None and program.name == "vllm.model_executor.models.registry":
            return  # vLLM inspects a model class in a process of its own

        server = server_id()
        show(server)
        if not may_schedule():
            return  # importing the scheduler would take time

        import vllm
        from vllm.v1.core.sched.scheduler import Scheduler

        install(Scheduler, vllm.__version__, server=server)
    except Exception as error:
        with suppress(Exception):  # a log handler may raise
            log.error("specdec %s: cannot observe this vLLM: %r", VERSION, error)


def is_first() -> bool:
    """Whether this is the first process of a vLLM server."""
    return multiprocessing.parent_process() is None and not is_ray_actor()


def is_ray_actor() -> bool:
    """Whether Ray has started this process for one of vLLM's workers or engine cores."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


def may_schedule() -> bool:
    """Whether this process may have a scheduler, or fork one that has.

    A worker, which has imported ``worker_base``, has none. The first process has imported that as
    well, for its command-line options, but it may become the engine core, or fork it.
    """
    is_worker = "vllm.v1.worker.worker_base" in sys.modules
    if not is_worker or "vllm.v1.engine.core" in sys.modules:
        return True
    if os.environ.get("VLLM_WORKER_MULTIPROC_METHOD") != "spawn":
        return True  # a forked process, a worker or the core, does not load plug-ins again
    return is_first() and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"


@functools.cache  # once a process, however often vLLM registers its plug-ins
def server_id() -> str | None:
    """The server's random id, made in its first process, from which all others are started.

    A first process makes a new one whatever it inherited, since it may be one of several servers
    that the same program started. None: it is switched off, or no first process has made one.
    """
    server = os.environ.get(SERVER)
    if server != OFF and is_first():
        server = os.urandom(8).hex()
        os.environ[SERVER] = server
    return server if server and server != OFF and len(server) <= MAX_ID else None


def show(server: str | None) -> None:
    """Puts the id on vLLM's page, as one gauge: in the processes that serve it.

    By now these have imported prometheus_client themselves. Several API servers all set the same
    value; the mode ``mostrecent``, which vLLM's own gauges have, makes one sample of them.
    """
    client = sys.modules.get("prometheus_client")
    serves = is_first() or multiprocessing.current_process().name.lower().startswith("apiserver")
    if server is None or client is None or not serves:
        return
    with suppress(Exception):  # the gauge exists already, or this prometheus_client is unknown
        gauge = client.Gauge(
            GAUGE,
            "1: the specdec plug-in is loaded; the id is that of this server.",
            ["id"],
            multiprocess_mode="mostrecent",
        )
        gauge.labels(server).set(1)


# -------------------------------------------------------------------------------------------------
# 2. What it wraps
# -------------------------------------------------------------------------------------------------

# The methods, with their parameters in vLLM from 0.16 on. If one of them has other parameters or is
# missing, none is wrapped.
#
# - ``make_spec_decoding_stats`` is called once for each request and step whose draft was verified.
# - ``update_from_output`` is called once a step.
# - ``_free_request`` is called once at the end of a request, however it ends.
#
# The constructor is wrapped as well, to say hello to the sidecar. So is ``schedule``, whatever its
# parameters: to notice when the engine has stood still, and to say again that nothing is observed.
KNOWN = {
    "make_spec_decoding_stats": "self spec_decoding_stats num_draft_tokens num_accepted_tokens"
    " num_invalid_spec_tokens request_id",
    "update_from_output": "self scheduler_output model_runner_output",
    "_free_request": "self request delay_free_blocks",
}
# A call may omit arguments for which vLLM has defaults. The wrappers' last parameters are vLLM's,
# so they can have the same defaults.
WITH_DEFAULTS = (*functools.WRAPPER_ASSIGNMENTS, "__defaults__")


def install(
    scheduler_class: Any,
    vllm_version: Any = None,
    path: str = SOCKET,
    server: str | None = None,
) -> None:
    """Wraps the methods of vLLM's Scheduler, or of a class like it, unless they are wrapped.

    An instance then has its ``Observer`` in ``_specdec``, or None while nothing observes it.
    """
    if "_specdec" in vars(scheduler_class):
        return
    scheduler_class._specdec = None

    methods = {
        name: getattr(scheduler_class, name) for name in KNOWN if hasattr(scheduler_class, name)
    }
    refusal = misfit({name: parameters(method) for name, method in methods.items()})
    wrappers = {} if refusal else {name: WRAPPERS[name](method) for name, method in methods.items()}
    construct = scheduler_class.__init__
    identity = {"vllm": text(vllm_version, 64), "server": server}

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        try:
            observe(self, wrappers, refusal, identity, path)
        except Exception as error:
            fail(self, "__init__", error)

    scheduler_class.__init__ = __init__
    for name, wrapper in wrappers.items():
        setattr(scheduler_class, name, wrapper)
    if hasattr(scheduler_class, "schedule"):
        scheduler_class.schedule = schedule_wrapper_of(scheduler_class.schedule)


def observe(
    scheduler: Any,
    wrappers: dict[str, Any],
    refusal: str,
    identity: dict[str, str | None],
    path: str,
) -> None:
    """Says hello for a scheduler that has just been constructed, and begins to observe it.

    The hello names the methods that a subclass has in place of the wrappers. If they do not call
    vLLM's, the counts here differ from vLLM's own, and the sidecar withholds them.
    """
    own = [name for name, wrapper in wrappers.items() if getattr(type(scheduler), name) != wrapper]
    hello = {**identity, "own": own, **introduction(scheduler)}
    observer = Observer(scheduler, hello, path)
    # Stays after ``fail`` has cleared ``_specdec``, and keeps the socket open: so the sidecar sees
    # a plug-in that is disabled, not a lost connection.
    scheduler._specdec_link = observer

    if refusal:
        observer.say("refused", f"needs the Scheduler of vLLM 0.16 or later; found {refusal}")
    else:
        scheduler._specdec = observer
        observer.say("observing")
    with suppress(Exception):  # a log handler may raise
        if refusal:
            log.warning("specdec %s: %s", VERSION, observer.report.hello["reason"])
        else:
            log.info("specdec %s: %s for %s", VERSION, observer.state, path)


def draft_wrapper_of(make: Any) -> Any:
    """The wrapper around ``make_spec_decoding_stats``: it counts one draft of one request.

    It counts as vLLM's own counters do. No other wrapper runs for each request in each step, so
    this one calls a helper only for a request that is new, or a cell that has not changed yet.
    """

    @functools.wraps(make, WITH_DEFAULTS)
    def make_wrapper(
        self: Any,
        spec_decoding_stats: Any,
        num_draft_tokens: Any,
        num_accepted_tokens: Any,
        num_invalid_spec_tokens: Any,
        request_id: Any,
    ) -> Any:
        result = make(
            self,
            spec_decoding_stats,
            num_draft_tokens,
            num_accepted_tokens,
            num_invalid_spec_tokens,
            request_id,
        )

        observer = self._specdec
        if observer is not None:
            try:
                drafted = num_draft_tokens
                if num_invalid_spec_tokens:
                    # vLLM's counters, too, leave out what the grammar rejected before verification.
                    drafted -= num_invalid_spec_tokens.get(request_id, 0)
                if not 0 <= num_accepted_tokens <= drafted <= observer.depth:
                    raise ImpossibleDraftError

                request = self.requests[request_id]
                try:
                    record = request._specdec
                except AttributeError:
                    record = observer.follow(request)
                record.drafts += 1
                record.draft_tokens += drafted
                record.accepted_tokens += num_accepted_tokens

                cell = record.cell
                if not cell.is_changed:
                    observer.note(cell)
                numbers = cell.numbers
                numbers[DRAFTED_AT + drafted] += 1
                numbers[observer.accepted_at + num_accepted_tokens] += 1
            except Exception as error:
                fail(self, "count", error)
        return result

    return make_wrapper


def step_wrapper_of(update: Any) -> Any:
    """The wrapper around ``update_from_output``."""

    @functools.wraps(update, WITH_DEFAULTS)
    def update_wrapper(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        observer = self._specdec
        if observer is not None:
            try:
                observer.before_step(self, scheduler_output)
            except Exception as error:
                fail(self, "before_step", error)

        result = update(self, scheduler_output, model_runner_output)

        observer = self._specdec
        if observer is not None:
            try:
                observer.after_step(self, scheduler_output, result)
            except Exception as error:
                fail(self, "after_step", error)
        return result

    return update_wrapper


def end_wrapper_of(free: Any) -> Any:
    """The wrapper around ``_free_request``."""

    @functools.wraps(free)
    def free_wrapper(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = free(self, request, *args, **kwargs)

        observer = self._specdec
        if observer is not None:
            try:
                observer.end(request)
            except Exception as error:
                fail(self, "end", error)
        return result

    return free_wrapper


WRAPPERS = {
    "make_spec_decoding_stats": draft_wrapper_of,
    "update_from_output": step_wrapper_of,
    "_free_request": end_wrapper_of,
}


def schedule_wrapper_of(schedule: Any) -> Any:
    """The wrapper around ``schedule``, which a subclass may replace without harm to the counts."""

    @functools.wraps(schedule)
    def schedule_wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer = self._specdec
        if observer is None:
            say_again(self)
        else:
            try:
                observer.before_schedule()
            except Exception as error:
                fail(self, "before_schedule", error)

        return schedule(self, *args, **kwargs)

    return schedule_wrapper


# -------------------------------------------------------------------------------------------------
# 3. When it gives up
# -------------------------------------------------------------------------------------------------


def misfit(found: dict[str, str]) -> str:
    """Names the methods that are missing or have unknown parameters; empty if there are none."""
    return ", ".join(
        f"{name}({found.get(name, 'missing')})"
        for name, known in KNOWN.items()
        if found.get(name) != known
    )


def parameters(method: Any) -> str:
    """Names a method's parameters, or says ``unreadable``, as a compiled method's may be.

    A parameter that cannot be given both by position and by name is marked with ``*``.
    """
    try:
        found = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return "unreadable"
    return " ".join(
        one.name if one.kind is one.POSITIONAL_OR_KEYWORD else one.name + "*" for one in found
    )


def fail(scheduler: Any, part: str, error: Exception) -> None:
    """Disables the plug-in: from now on, the wrappers only call vLLM's own methods.

    Neither the log nor the hello quotes the error's text, which may name a request.
    """
    observer = scheduler._specdec
    scheduler._specdec = None
    reason = f"{part}: {type(error).__name__}"
    with suppress(Exception):  # a log handler may raise
        own_file = fail.__code__.co_filename
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_code.co_filename == own_file]
        reason += f" at line {lines[-1]}"
        log.error("specdec %s is disabled, and vLLM goes on without it: %s", VERSION, reason)

    with suppress(Exception):
        if observer is not None:  # else its constructor failed
            # Lets go of vLLM's objects, and of what will never be reported.
            observer.starting = {}
            observer.step_ends.clear()
            observer.finished.clear()
            observer.say("disabled", reason)


def say_again(scheduler: Any) -> None:
    """Tells a sidecar that has started since that nothing is observed, and why."""
    with suppress(Exception):  # what has failed once may fail again
        observer = scheduler.__dict__.get("_specdec_link")  # None: its constructor failed
        if observer is not None:
            observer.say_again()


class ImpossibleDraftError(Exception):
    """More accepted than drafted, or negative: vLLM before 0.16 counts -1 without a result."""


# -------------------------------------------------------------------------------------------------
# 4. What it counts
# -------------------------------------------------------------------------------------------------

ABOVE_2 = 201  # the key of all temperatures above 2, in hundredths; 0 to 200 are themselves
MAX_EXPONENT = 20  # of the keys that are powers
EXACT_DECODES = 16  # the number of requests that decode in a step is exact up to here
PAUSE = 0.1  # seconds; if nothing is scheduled for longer than this, the engine stood still
MIXED = 64  # a step with more prompt tokens than this is a mixed one
MAX_SAMPLED = 64  # requests whose context is looked at, once per report
# Combinations of what requests are counted by. Further ones are counted by temperature and ``OWN``
# alone, so a temperature's counts are exact whatever clients send.
MAX_CELLS = 1024
# Finished requests that wait to be sent. Past that, the oldest is dropped and counted as lost.
MAX_FINISHED = 4096

# What else a request is counted by: one bit each.
STRUCTURED = 1
FILTERED = 2  # top-k, top-p or min-p shape the target's distribution, and not the draft's
PENALTIES = 4
MIN_P = 8  # vLLM from 0.14 on rejects this and the next one while it speculates
LOGIT_BIAS = 16
OWN = 32  # one of the sidecar's own commands has sent it
OWN_MARK = "specdec-own-"  # part of such a request's id

OUTCOMES = ("stopped", "length", "repetition", "aborted", "error")
DRAFTED_AT = len(OUTCOMES)  # the place of drafts without a token in the numbers of a cell
OUTCOME_OF = {
    "FINISHED_STOPPED": 0,
    "FINISHED_LENGTH_CAPPED": 1,
    "FINISHED_IGNORED": 1,
    "FINISHED_REPETITION": 2,
    "FINISHED_ABORTED": 3,
}  # by vLLM's status; any other one is an error

# What is encoded has no cycles.
encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


new_tokens = attrgetter("new_token_ids")


class Cell:
    """Counts requests, or steps, with the same key since the engine started.

    ``key`` is what they have in common; the ``numbers`` only grow.
    """

    __slots__ = ("has_counted", "is_changed", "is_of_steps", "key", "numbers")

    def __init__(self, key: tuple[Any, ...], size: int, *, is_of_steps: bool) -> None:
        self.key = encode(key)[:-1]  # as JSON, without the end: the numbers follow
        self.numbers: list[Any] = [0] * size
        self.is_of_steps = is_of_steps
        self.is_changed = False  # since it was last copied for a report
        self.has_counted = False


class Record:
    """What is kept of one of vLLM's requests, in its attribute ``_specdec``."""

    __slots__ = (
        "accepted_tokens",
        "cell",
        "draft_tokens",
        "drafts",
        "first_token_at",
        "has_ended",
        "has_turns",
        "prefill_stats",
        "sampling_params",
        "traits",
    )

    def __init__(self, request: Any, traits: tuple[Any, ...], cell: Cell) -> None:
        self.sampling_params = request.sampling_params
        self.traits = traits  # temperature, bits and adapter
        self.cell = cell
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.first_token_at = 0.0  # Unix seconds
        self.has_ended = False
        self.has_turns = False  # whether it has gone on with other parameters, as a session does
        # From 0.20 on it has the number of cached tokens; vLLM drops it at the first token.
        self.prefill_stats = getattr(request, "prefill_stats", None)


class Observer:
    """Counts for one Scheduler, and reports to the sidecar."""

    def __init__(self, scheduler: Any, hello: dict[str, Any], path: str) -> None:
        """``hello`` is what to tell the sidecar about the scheduler, without the state."""
        # The numbers of a cell of requests: the requests that ended, by outcome; then the drafts by
        # how many tokens they had, from 0 to ``depth``; then, from index ``accepted_at`` on, the
        # drafts by how many of their tokens were accepted.
        self.depth = scheduler.num_spec_tokens  # also the length of vLLM's own lists
        self.accepted_at = DRAFTED_AT + self.depth + 1
        self.size = self.accepted_at + self.depth + 1
        self.request_cells: dict[tuple[Any, ...], Cell] = {}
        self.step_cells: dict[tuple[Any, ...], Cell] = {}
        self.changed: list[Cell] = []  # those that have changed since they were last copied
        self.counted: list[Cell] = []  # all that have counted anything, by when they first did
        # By how outputs end: finished requests by outcome, then their drafts, draft tokens and
        # accepted tokens.
        self.endings = {ending: [0] * (len(OUTCOMES) + 3) for ending in ENDINGS}
        self.finished: deque[str] = deque()  # finished requests, as JSON
        self.lost = 0  # finished requests that were dropped
        self.starting: dict[str, Any] = {}  # scheduled requests that have no token yet, by id
        self.step_count = 0
        self.generation_tokens = 0

        # The current step.
        self.now = time.time()
        self.clock = time.monotonic()
        self.has_run = False  # whether anything was scheduled in it; True if unknown
        self.step_seconds = 0.0  # 0: unknown
        # When the last steps ended, as many as there are pipeline stages, and what was in each.
        stages = getattr(scheduler.vllm_config.parallel_config, "pipeline_parallel_size", 1)
        self.step_ends: deque[tuple[float, dict[str, int]]] = deque(maxlen=stages)
        # When vLLM began to schedule the first step after a pause or an idle gap; 0: no such step.
        self.begun = 0.0
        self.in_flight = 0  # steps that were scheduled and have not ended
        self.active_at = 0.0  # when vLLM last scheduled or ended a step
        # The mean number of tokens of a decoding request, sampled once per report.
        self.context = 0
        self.context_power = 0  # the smallest n for which it is at most 4**n
        self.is_context_sampled = False

        self.report = Report(self, Link(path), hello)
        self.state = ""

    def say(self, state: str, reason: str = "") -> None:
        """Changes the state, and says hello with it."""
        self.state = state
        self.report.hello.update(state=state, reason=reason[:200])
        self.report.say_hello()

    def say_again(self) -> None:
        """Repeats the hello if the connection has ended; looks once per ``MAX_RETRY`` at most."""
        clock = time.monotonic()
        if clock >= self.report.not_before:
            self.report.not_before = clock + MAX_RETRY
            if not self.report.link.is_heard():
                self.report.say_hello()

    # A step

    def before_schedule(self) -> None:
        """Before vLLM's ``schedule``: a pause (``/pause``, ``/sleep``) is part of no step.

        Nor is a call to all workers, such as one that loads an adapter or new weights.
        """
        clock = time.monotonic()
        if clock - self.active_at > PAUSE:
            self.interrupt()
        self.active_at = clock
        if not self.in_flight and not self.step_ends:
            self.begun = clock
        self.in_flight += 1

    def before_step(self, scheduler: Any, scheduler_output: Any) -> None:
        """Before vLLM's ``update_from_output``, which frees requests that end."""
        self.now = time.time()
        self.clock = time.monotonic()
        self.active_at = self.clock
        if self.in_flight:
            self.in_flight -= 1
        self.step_seconds = 0.0
        # If a vLLM has them elsewhere, only the durations of its steps are unknown.
        scheduled = getattr(scheduler_output, "num_scheduled_tokens", None)
        self.has_run = scheduled is None or bool(scheduled)
        if not self.has_run:
            fills_a_pipeline = self.step_ends.maxlen != 1 and scheduler.running
            if not fills_a_pipeline or self.stands_still():
                self.interrupt()  # the engine waits for something other than a step under way
            return

        self.step_count += 1
        if scheduled:
            self.time_step(scheduled)

        for new in scheduler_output.scheduled_new_reqs:
            request = scheduler.requests.get(new.req_id)
            if request is None or is_pooling(request):
                continue
            self.follow(request)
            # Model runner V2 lists a preempted request as new once more; such a one has tokens.
            if not request.num_output_tokens:
                self.starting[new.req_id] = request

    def time_step(self, scheduled: dict[str, int]) -> None:
        """Measures the step: from the end of the last step that had these requests, too.

        The first step after the engine stood still begins when vLLM began to schedule it.
        """
        if self.begun:
            self.step_seconds = self.clock - self.begun
        for ended, ids in reversed(self.step_ends):
            # With pipeline stages, requests may be in every step or only in every other one.
            if self.step_ends.maxlen == 1 or next(iter(scheduled)) in ids:
                self.step_seconds = self.clock - ended
                break
        self.begun = 0.0
        self.step_ends.append((self.clock, scheduled))

    def stands_still(self) -> bool:
        """Whether no step has ended for longer than one is likely to take."""
        return bool(self.step_ends) and self.clock - self.step_ends[-1][0] > PAUSE

    def interrupt(self) -> None:
        """The engine pauses: the next step does not begin where the last one ended."""
        self.step_ends.clear()
        self.begun = 0.0

    def after_step(self, scheduler: Any, scheduler_output: Any, result: Any) -> None:
        """After vLLM's ``update_from_output``, whose ``result`` has what the step generated."""
        if self.has_run or self.starting:
            self.count_output(scheduler, scheduler_output, result)

        # The number may be negative, since 0.16 counts a waiting streaming session twice.
        is_idle = not scheduler.running and scheduler.get_num_unfinished_requests() <= 0
        if is_idle:  # also in the step that vLLM runs after an abort, to tell its workers
            self.interrupt()
            self.in_flight = 0
        self.report.go_on(scheduler, is_idle=is_idle)

    def count_output(self, scheduler: Any, scheduler_output: Any, result: Any) -> None:
        """Counts what a step generated, and the step itself if its duration is known."""
        lengths: list[int] = []
        for client in result.values():
            lengths += map(len, map(new_tokens, client.outputs))
        decodes = len(lengths) - lengths.count(0)
        tokens = sum(lengths)
        self.generation_tokens += tokens

        if self.starting:
            first_tokens = self.take_started(scheduler.requests)
            decodes -= len(first_tokens)
            tokens -= sum(first_tokens)
        if decodes > 0 and not self.is_context_sampled:
            self.sample_context(scheduler.requests, result)
        if self.step_seconds:
            # In a step that only prefills, nothing decodes.
            self.count_step(scheduler_output, max(decodes, 0), tokens if decodes > 0 else 0)

    def take_started(self, requests: dict[str, Any]) -> list[int]:
        """For each request that got its first tokens in this step, how many it got.

        For such a request the step was a prefill, not a decode. A request that is no longer among
        the scheduler's ``requests`` gets none.
        """
        first_tokens = []
        for request_id, request in [*self.starting.items()]:
            record = request._specdec
            tokens = request.num_output_tokens
            if tokens or record.has_ended or request_id not in requests:
                del self.starting[request_id]

            if tokens:
                record.first_token_at = record.first_token_at or self.now
                first_tokens.append(tokens)

        return first_tokens

    def count_step(self, scheduler_output: Any, decodes: int, tokens: int) -> None:
        """Counts a step in which ``decodes`` requests decoded, and got ``tokens`` tokens in all."""
        drafts = scheduler_output.scheduled_spec_decode_tokens
        scheduled = scheduler_output.num_scheduled_tokens
        prefill_tokens = 0
        most = len(scheduled) + self.depth * len(drafts)  # if all requests only decoded
        if len(scheduled) > decodes or scheduler_output.total_num_scheduled_tokens > most:
            decoded = decodes + sum(map(len, drafts.values()))
            # A KV connector may have made it a NumPy integer.
            prefill_tokens = max(int(scheduler_output.total_num_scheduled_tokens) - decoded, 0)

        running = decodes if decodes <= EXACT_DECODES else 2 ** exponent(decodes)
        key = (running, self.context_power if decodes else 0, prefill_tokens > MIXED)
        more = (
            1,
            self.step_seconds,
            decodes,
            decodes * self.step_seconds,
            tokens,
            prefill_tokens,
            decodes * self.context,
            len(drafts),
        )
        cell = self.step_cells.get(key)
        if cell is None:
            cell = self.step_cells[key] = Cell(key, len(more), is_of_steps=True)
        self.note(cell)
        cell.numbers[:] = map(add, cell.numbers, more)

    def sample_context(self, requests: dict[str, Any], result: Any) -> None:
        """Looks at how many tokens some of the decoding requests have, once per report."""
        self.is_context_sampled = True
        outputs = [output for client in result.values() for output in client.outputs]
        every = -(-len(outputs) // MAX_SAMPLED)
        decoding = [requests.get(output.request_id) for output in outputs[::every]]

        contexts = [
            request.num_prompt_tokens + request.num_output_tokens
            for request in decoding
            if request is not None
        ]
        if contexts:
            self.context = round(sum(contexts) / len(contexts))
            self.context_power = (exponent(self.context) + 1) // 2

    # A request

    def follow(self, request: Any) -> Record:
        """The record of a request, which is kept in the request from its first step to its end.

        At the next turn of a session, vLLM gives the request new parameters. From then on it counts
        in their cell.
        """
        record = request.__dict__.get("_specdec")
        parameters = request.sampling_params
        if record is None:
            traits = traits_of(request)
            record = Record(request, traits, self.cell_of(traits, request.num_prompt_tokens))
            request._specdec = record
        elif parameters is not None and parameters is not record.sampling_params:
            record.sampling_params = parameters
            record.has_turns = True
            record.traits = traits_of(request)
            record.cell = self.cell_of(record.traits, request.num_prompt_tokens)
        return record

    def cell_of(self, traits: tuple[Any, ...], prompt_tokens: int) -> Cell:
        """The cell in which a request counts: of its combination, or of its temperature alone."""
        temperature, bits, adapter = traits
        key = (temperature, bits, exponent(prompt_tokens), adapter)
        cell = self.request_cells.get(key)
        if cell is not None:
            return cell

        if len(self.request_cells) >= MAX_CELLS:
            key = (temperature, bits & OWN, None, None)
            cell = self.request_cells.get(key)
        if cell is None:
            cell = self.request_cells[key] = Cell(key, self.size, is_of_steps=False)
        return cell

    def note(self, cell: Cell) -> None:
        """Notes that a cell has changed since it was last reported."""
        if not cell.is_changed:
            cell.is_changed = True
            self.changed.append(cell)
            if not cell.has_counted:
                cell.has_counted = True
                self.counted.append(cell)

    def note_all(self) -> None:
        """Notes all cells for the next report, in the order in which they first counted."""
        self.changed = [*self.counted]
        for cell in self.changed:
            cell.is_changed = True

    def end(self, request: Any) -> None:
        """Counts the end of a request."""
        if is_pooling(request):
            return
        record = self.follow(request)
        if record.has_ended:  # with a KV connector, a request can end a second time
            return
        record.has_ended = True

        outcome = OUTCOME_OF.get(request.status.name, len(OUTCOMES) - 1)
        self.note(record.cell)
        record.cell.numbers[outcome] += 1

        has_ending = not (record.has_turns or record.traits[1] & OWN)
        ending = ending_of(request, OUTCOMES[outcome]) if has_ending else None
        if ending is not None:
            counts = self.endings[ending]
            counts[outcome] += 1
            counts[-3] += record.drafts
            counts[-2] += record.draft_tokens
            counts[-1] += record.accepted_tokens

        if len(self.finished) == MAX_FINISHED:
            self.finished.popleft()
            self.lost += 1
            self.report.unsent = max(self.report.unsent - 1, 0)
        self.finished.append(finished_request(request, record, outcome, ending, self.now))


def is_pooling(request: Any) -> bool:
    """Whether a request generates nothing.

    ``sampling_params`` alone does not say so: another plug-in may have set it to None.
    """
    has_none = request.sampling_params is None
    return has_none and getattr(request, "pooling_params", None) is not None


def traits_of(request: Any) -> tuple[Any, ...]:
    """A request's temperature in hundredths, bits and adapter.

    The temperature and the bits of its sampling parameters are unknown if another plug-in has set a
    value that vLLM itself refuses.
    """
    known = STRUCTURED if request.use_structured_output else 0
    if OWN_MARK in request.request_id:
        known |= OWN
    adapter = None
    if request.lora_request is not None:
        adapter = str(request.lora_request.lora_name)[:MAX_NAME]

    try:
        read = functools.partial(getattr, request.sampling_params)
        bits = known
        if read("top_k", 0) > 0 or read("top_p", 1) < 1 or read("min_p", 0) > 0:
            bits |= FILTERED
        if (
            read("presence_penalty", 0)
            or read("frequency_penalty", 0)
            or read("repetition_penalty", 1) != 1
        ):
            bits |= PENALTIES
        if read("min_p", 0) > 0:
            bits |= MIN_P
        if read("logit_bias", None):
            bits |= LOGIT_BIAS
        return hundredths(request.sampling_params.temperature), bits, adapter
    except Exception:
        return None, known, adapter


def hundredths(temperature: float) -> int:
    """A temperature in hundredths, rounded up; at most ``ABOVE_2``."""
    if not temperature >= 0:  # NaN is refused as well
        raise ValueError
    return ceil(round(100 * min(temperature, ABOVE_2 / 100), 6))


def exponent(number: int) -> int:
    """The smallest n for which ``number`` is at most 2**n."""
    return min(max(number - 1, 0).bit_length(), MAX_EXPONENT)


def finished_request(
    request: Any, record: Record, outcome: int, ending: str | None, now: float
) -> str:
    """The record of a finished request, as JSON.

    For a session, the times and the numbers of cached and output tokens are unknown: vLLM has
    forgotten earlier turns. The last token's time is that of the step in which the request ended.
    """
    tokens = request.num_output_tokens
    cached = cached_tokens(request, record.prefill_stats)
    arrival = unix_seconds(request.arrival_time)
    last_token = now if tokens else None
    first_token = record.first_token_at or last_token
    if record.has_turns:
        tokens = cached = arrival = first_token = last_token = None

    return encode(
        [
            *record.traits,
            max(request.num_prompt_tokens, 0),
            cached,
            tokens,
            OUTCOMES[outcome],
            ending,
            record.drafts,
            record.draft_tokens,
            record.accepted_tokens,
            arrival,
            first_token,
            last_token,
        ]
    )


def unix_seconds(value: Any) -> float | None:
    """A time by the API server's clock; None if the value is not a time."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 2**40 else None


def cached_tokens(request: Any, prefill_stats: Any) -> int | None:
    """Prompt tokens that were found in the prefix cache; None if this vLLM does not say."""
    source = request if prefill_stats is None else prefill_stats
    tokens = getattr(source, "num_cached_tokens", None)
    return tokens if isinstance(tokens, int) and tokens >= 0 else None


ENDINGS = ("normal", "loop", "empty")
# An output ends in a loop if its last tokens stand there LOOP_TIMES in a row, over at least
# LOOP_TOKENS tokens, with a period of up to 200. A row of LOOP_PERIODS has the shortest and the
# longest period that it finds, and how many of the last tokens to search for: with a period of 30,
# for example, the last 44 tokens also stand 30 tokens earlier. At most LOOP_CANDIDATES matches are
# checked in full.
LOOP_TIMES = 3
LOOP_TOKENS = 64
LOOP_PERIODS = ((1, 21, 43), (22, 63, 44), (64, 200, 128))
LOOP_CANDIDATES = 3
LOOP_SEARCHED = 200 + 128  # tokens


def ending_of(request: Any, outcome: str) -> str:
    """How a request's output ends: in a ``loop``, ``empty``, or ``normal``.

    A request that stopped by itself has reached its end token, so it is in no loop.
    """
    if outcome == "stopped":
        return "empty" if request.num_output_tokens <= 1 else "normal"
    if outcome == "repetition":
        return "loop"  # vLLM's own detection
    if outcome in ("length", "aborted") and is_loop(request.output_token_ids):
        return "loop"
    return "normal"


def is_loop(tokens: Any) -> bool:
    """Whether an output ends in a repetition; False if that is not found quickly.

    Clients can steer the output, so the check takes about the same time whatever it is: it searches
    for the last tokens by the lowest byte of each, and checks only a few matches in full.
    """
    if len(tokens) < LOOP_TOKENS:
        return False

    backwards = tokens[-LOOP_SEARCHED:][::-1]
    searched = struct.pack(f"<{len(backwards)}q", *backwards)[::8]
    for shortest, longest, number in LOOP_PERIODS:
        sought = searched[:number]
        period = shortest - 1
        for _ in range(LOOP_CANDIDATES):
            period = searched.find(sought, period + 1, longest + number)
            if period < 0:
                break
            if is_repeated(tokens, period):
                return True
    return False


def is_repeated(tokens: Any, period: int) -> bool:
    """Whether the last tokens repeat with this period, often enough and over enough of them."""
    span = max(LOOP_TIMES * period, LOOP_TOKENS)
    if len(tokens) < span or tokens[-1] != tokens[-1 - period]:
        return False
    if tokens[-span] != tokens[period - span]:
        return False

    tail = tokens[-span:]
    return tail[period:] == tail[:-period]


# -------------------------------------------------------------------------------------------------
# 5. What it sends
# -------------------------------------------------------------------------------------------------

PERIOD = 1.0  # seconds between reports while there is traffic
MAX_RETRY = 10.0  # seconds; tries to connect are PERIOD apart, then twice that, up to this
MAX_ITEMS = 64  # cells and finished requests in a packet
MAX_NAME = 200  # characters of an adapter's name
MAX_BYTES = 2**17  # of a packet: the sidecar reads no more
NUMBER_BYTES = 20  # of a number in a packet, at most
OTHER_BYTES = 1400  # of the rest of a cell, at most; the adapter's name is most of it


class Report:
    """Tells the sidecar what an Observer has counted, in at most one packet per step.

    A report is one cut: when it begins, everything that has changed is copied at once. Since all
    counts are totals since the engine started, the next report makes up for what the socket did not
    take. A new connection gets everything, in the same order as the one before: the sidecar gives a
    label to the adapters that come first, and after its restart these have to be the same.
    """

    def __init__(self, observer: Observer, link: Link, hello: dict[str, Any]) -> None:
        self.observer = observer
        self.link = link
        # ``full``: there are too many combinations of keys to tell all of them apart.
        self.hello = {**hello, "full": False}
        cell_bytes = OTHER_BYTES + NUMBER_BYTES * observer.size
        self.max_items = max(1, min(MAX_ITEMS, MAX_BYTES // cell_bytes))

        self.due = 0.0  # when the next one is due, by the monotonic clock
        self.not_before = 0.0  # by the same clock: when to try again after a try that failed
        self.retry = PERIOD  # seconds to wait if the next try to connect fails
        self.reported_steps = 0

        # The report under way.
        self.cells: deque[tuple[Cell, list[Any]]] = deque()  # with copies of their numbers
        self.heartbeat = ""  # goes with the last cells, as JSON
        self.unsent = 0  # how many of the oldest finished requests are still to be sent

    def go_on(self, scheduler: Any, *, is_idle: bool) -> None:
        """Begins a report if it is time, and sends the next packet of the one under way.

        If the engine is idle, all packets are sent, since the next step may be far off.
        """
        # Whether the sidecar at the other end may have gone: then an idle engine tries once more.
        may_be_lost = self.link.is_open
        while self.is_under_way or self.is_due(is_idle=is_idle):
            # Finished requests may take longer than a period; the next cut does not wait for them.
            is_next_due = not self.heartbeat and not is_idle and self.is_due(is_idle=False)
            if (is_next_due or not self.is_under_way) and not self.begin(scheduler):
                return
            if self.send_packet():
                if not is_idle:
                    return
            elif self.link.is_open or not may_be_lost:  # the socket is full, or nobody reads
                self.not_before = self.observer.clock + PERIOD
                return
            may_be_lost = may_be_lost and self.link.is_open

    @property
    def is_under_way(self) -> bool:
        """Whether a part of a report is still to be sent."""
        return bool(self.heartbeat) or self.unsent > 0

    def is_due(self, *, is_idle: bool) -> bool:
        """Whether to begin a report: after a period, or at once if an idle engine has news."""
        observer = self.observer
        if observer.clock < self.not_before:
            return False
        if is_idle:
            return bool(
                observer.changed or observer.finished or observer.step_count != self.reported_steps
            )
        return observer.clock >= self.due

    def begin(self, scheduler: Any) -> bool:
        """Begins a report with copies of what has changed; False if nobody listens."""
        observer = self.observer
        observer.is_context_sampled = False
        is_full = len(observer.request_cells) >= MAX_CELLS
        is_new = not self.link.is_open or self.hello["full"] != is_full
        self.hello["full"] = is_full
        if is_new and not self.say_hello():
            self.not_before = observer.clock + self.retry
            self.retry = min(2 * self.retry, MAX_RETRY)
            return False

        self.retry = PERIOD
        self.due = observer.clock + PERIOD
        self.reported_steps = observer.step_count
        for cell in observer.changed:
            cell.is_changed = False
            self.cells.append((cell, [*cell.numbers]))
        observer.changed = []

        running = len(scheduler.running)
        waiting = max(scheduler.get_num_unfinished_requests() - running, 0)
        endings = ",".join(f'"{name}":{numbers}' for name, numbers in observer.endings.items())
        self.unsent = len(observer.finished)
        self.heartbeat = (
            f'{{"at":{observer.now},"steps":{observer.step_count},'
            f'"generation_tokens":{observer.generation_tokens},'
            f'"running":{running},"waiting":{waiting},"lost":{observer.lost},'
            f'"endings":{{{endings}}}}}'
        )
        return True

    def send_packet(self) -> bool:
        """Sends the next cells or, with the last ones and after them, finished requests."""
        observer = self.observer
        part = [self.cells.popleft() for _ in range(min(len(self.cells), self.max_items))]
        cells: dict[bool, list[str]] = {False: [], True: []}  # by whether they are of steps
        for cell, numbers in part:
            # Python writes a list of integers and finite floats as JSON does.
            cells[cell.is_of_steps].append(f"{cell.key},{numbers}]")

        heartbeat = "null"
        finished: list[str] = []
        if not self.cells:
            heartbeat = self.heartbeat or heartbeat
            room = min(self.max_items - len(part), self.unsent)
            finished = [*islice(observer.finished, room)]

        message = (
            f'{{"requests":[{",".join(cells[False])}],"steps":[{",".join(cells[True])}],'
            f'"end":{heartbeat},"finished":[{",".join(finished)}]}}'
        )
        if not self.link.send("report", message):
            self.take_back(part)
            return False

        if not self.cells:
            self.heartbeat = ""
        for _ in finished:
            observer.finished.popleft()
        self.unsent -= len(finished)
        return True

    def say_hello(self) -> bool:
        """Introduces the observer, on a new connection if there is none; False if nobody listens.

        A new connection is to get all cells.
        """
        self.take_back([])
        was_open = self.link.is_open
        if not self.link.connect() or not self.link.send("hello", encode(self.hello)):
            self.link.close()  # so that the sidecar does not miss a change of state
            return False
        if not was_open:
            self.observer.note_all()
        return True

    def take_back(self, part: list[tuple[Cell, list[Any]]]) -> None:
        """Gives up the report under way; what it has not sent is left to the next one."""
        for cell, _ in chain(part, self.cells):
            self.observer.note(cell)
        self.cells.clear()
        self.heartbeat = ""
        self.unsent = 0


class Link:
    """The connection to the sidecar's socket. Nothing waits for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.process = os.getpid()
        self.socket: Any = None  # None: not connected
        drop_in_children(self)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self.socket is not None

    def connect(self) -> bool:
        """Connects unless it is connected, and returns whether it is; never in a forked process."""
        if self.socket is not None or self.process != os.getpid():
            return self.socket is not None
        with suppress(OSError):  # nobody listens, or no descriptor is free
            kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
            connecting = socket.socket(socket.AF_UNIX, kind)
            try:
                connecting.connect(self.path)
            except OSError:
                connecting.close()
                return False
            self.socket = connecting
        return self.socket is not None

    def send(self, kind: str, message: str) -> bool:
        """Sends a packet; returns whether the socket took it. A broken socket is closed."""
        if self.socket is None:
            return False
        # A name may be invalid Unicode.
        packet = f'{{"v":{FORMAT},"{kind}":{message}}}'.encode(errors="replace")
        try:
            return self.socket.send(packet, socket.MSG_NOSIGNAL) > 0
        except BlockingIOError:  # it is full
            return False
        except OSError:
            self.close()
            return False

    def is_heard(self) -> bool:
        """Whether the other end is still there; if not, the connection is closed."""
        if self.socket is not None:
            ends = select.poll()
            ends.register(self.socket, 0)  # 0: reports only that the other end has gone
            if ends.poll(0):
                self.close()
        return self.socket is not None

    def close(self) -> None:
        """Closes this process's descriptor."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def drop_in_children(link: Link) -> None:
    """Makes processes that are forked from this one close the connection, which is the parent's."""
    reference = weakref.ref(link)

    def drop() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    os.register_at_fork(after_in_child=drop)


# -------------------------------------------------------------------------------------------------
# 6. What it reads of vLLM's configuration
# -------------------------------------------------------------------------------------------------

# Names in the hello, and where to find each setting from vLLM's speculative configuration on. They
# are settings that explain an acceptance rate or a speedup.
SPECULATION = {
    "draft_sample_method": "draft_sample_method",
    "local_argmax": "use_local_argmax_reduction",
    "heterogeneous_vocab": "use_heterogeneous_vocab",
    "keeps_last_block": "disable_eagle_block_drop",
    "draft_quantization": "draft_model_config.quantization",
    "draft_max_model_len": "draft_model_config.max_model_len",
    "draft_tensor_parallel_size": "draft_tensor_parallel_size",
}
MAX_OPTIONS = 4096  # characters of the --speculative-config
# Options whose names end like this are never sent. vLLM has none today.
SECRET = ("_key", "_secret", "_token", "password")
# As ``SPECULATION``, from vLLM's whole configuration on.
CONFIGURATION = {
    "model_runner_v2": "use_v2_model_runner",
    "async_scheduling": "scheduler_config.async_scheduling",
    "prefix_caching": "cache_config.enable_prefix_caching",
    "quantization": "model_config.quantization",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "lookahead_hash_tokens": "num_hash_lookahead_tokens",  # from 0.33
    "max_model_len": "model_config.max_model_len",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "kv_connector_role": "kv_transfer_config.kv_role",
    "device": "device_config.device_type",
    "is_hybrid": "model_config.is_hybrid",
    "is_moe": "model_config.is_moe",
}
# Here NVIDIA's driver has a folder for each GPU, with its model's name. vLLM's platform has the
# name, too, but reading a file loads no library and initializes no device.
GPUS = "/proc/driver/nvidia/gpus"
MAX_SIZE = 2**53  # the sidecar reads no larger number
# The dimensions from which a model's parameters are counted, as its configuration names them.
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"),
    *("draft_vocab_size", "target_hidden_size"),  # of a head that drafts
    # of latent attention
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    # of experts
    *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok"),
    *("moe_intermediate_size", "n_shared_experts", "shared_expert_intermediate_size"),
    *("first_k_dense_replace", "interleave_moe_layer_step", "intermediate_size_mlp"),
)


def introduction(scheduler: Any) -> dict[str, Any]:
    """What the hello says of a scheduler."""
    vllm = scheduler.vllm_config
    parallel = vllm.parallel_config
    names = vllm.model_config.served_model_name
    if isinstance(names, (list, tuple)):
        names = names[0]
    configuration = {name: setting(vllm, path) for name, path in CONFIGURATION.items()}
    # From 0.32 the scheduler says whether EAGLE and its like drop the last block of a prefix-cache
    # hit. Before, they always do.
    drops = setting(scheduler, "use_eagle_block_drop")
    configuration["drops_cache_block"] = setting(scheduler, "use_eagle") if drops is None else drops
    configuration["block_size"] = cache_block(scheduler)
    configuration["accelerator"] = accelerator()
    configuration["sizes"] = sizes(vllm.model_config)
    return {
        "plugin": VERSION,
        "model": text(names, 1024),
        "engine": getattr(parallel, "data_parallel_index", 0) or 0,
        "start": os.urandom(8).hex(),
        "started": time.time(),
        "speculation": speculation(vllm.speculative_config),
        "configuration": configuration,
    }


def accelerator() -> str | None:
    """The model of this container's NVIDIA GPUs; None if there are several models.

    None, too, without the driver's files. A slice of a GPU (MIG) counts as its GPU.
    """
    models = set()
    with suppress(OSError):
        for path in islice(Path(GPUS).glob("*/information"), 64):
            with path.open(encoding="ascii", errors="replace") as file:
                label, _, model = file.readline(256).partition(":")
            if label == "Model":
                models.add(model.strip())
    return models.pop() if len(models) == 1 else None


def cache_block(scheduler: Any) -> int | None:
    """Tokens per block, in the group of the KV cache that drops blocks of a prefix-cache hit.

    0 if the cache has several groups and it is not known which one; None if it has no groups.
    """
    with suppress(Exception):
        coordinator = scheduler.kv_cache_manager.coordinator
        managers = coordinator.single_type_managers
        sizes = {manager.block_size for manager in managers}
        # From 0.33, and from 0.20.
        dropping = getattr(coordinator, "drop_eagle_group_ids", None)
        if dropping is None:
            dropping = getattr(coordinator, "eagle_group_ids", None)
        if dropping is None and len(managers) > 1:
            return 0  # each group drops a block of what the one before has left
        if dropping:
            sizes = {max(managers[group].block_size for group in dropping)}
        return sizes.pop() if len(sizes) == 1 else 0
    return None


def speculation(speculative: Any) -> dict[str, Any] | None:
    """How the engine drafts, after vLLM's own validation; None if it does not."""
    if not speculative:
        return None

    schedule = getattr(speculative, "num_speculative_tokens_per_batch_size", None)
    schedule = schedule[:64] if isinstance(schedule, (list, tuple)) else []
    draft_tokens = setting(speculative, "num_speculative_tokens") or 0
    draft = getattr(speculative, "draft_model_config", None)

    architectures = None
    with suppress(Exception):  # a property may raise
        architectures = [text(name, 256) for name in draft.architectures[:8]]

    return {
        "method": setting(speculative, "method"),
        "num_speculative_tokens": min(draft_tokens, 1024),
        "per_batch_size": bool(schedule),
        "schedule": schedule,
        "adaptive_verification": bool(getattr(speculative, "enable_adaptive_verification", None)),
        "rejection_sample_method": setting(speculative, "rejection_sample_method"),
        "parallel_drafting": bool(getattr(speculative, "parallel_drafting", None)),
        "draft_architectures": architectures,
        "draft_sizes": sizes(draft),
        "options": options(speculative),
        **{name: setting(speculative, path) for name, path in SPECULATION.items()},
    }


def sizes(model: Any) -> dict[str, int]:
    """Those of ``SIZES`` that the model's configuration has."""
    found = {}
    for name in SIZES:
        value = setting(model, f"hf_text_config.{name}")
        if type(value) in (int, bool) and value < MAX_SIZE:
            found[name] = int(value)  # a flag as 0 or 1
    return found


def options(speculative: Any) -> str | None:
    """The --speculative-config as JSON; None if it is unknown or too long.

    It has the plain values that differ from vLLM's defaults. A 0 for an option without a default is
    left out: vLLM itself has filled it in, and would not accept it.
    """
    found = {}
    with suppress(Exception):
        for field in dataclasses.fields(speculative):
            value = getattr(speculative, field.name)
            default = getattr(field.default, "default", field.default)  # of pydantic's FieldInfo

            is_plain = isinstance(value, (bool, int, float, str, list))
            is_filled_in = value == 0 and default is None
            is_secret = field.name.endswith(SECRET)
            if is_plain and value != default and not is_filled_in and not is_secret:
                found[field.name] = value

        config = encode(found)
        return config if found and len(config) <= MAX_OPTIONS else None
    return None


def setting(source: Any, path: str) -> Any:
    """A setting of vLLM's: text, a flag or an integer from 0 on; None if it has no such setting."""
    with suppress(Exception):  # a property may raise
        for name in path.split("."):
            source = getattr(source, name)
        if isinstance(source, str):
            return text(source, 256)
        if isinstance(source, int) and source >= 0:
            return source
    return None


def text(value: Any, most: int) -> str | None:
    """The first ``most`` characters of a text; None if the value is not a text."""
    return value[:most] if isinstance(value, str) else None
