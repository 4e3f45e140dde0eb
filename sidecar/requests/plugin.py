"""Counts, inside vLLM's scheduler, what each request drafts and accepts, and tells the sidecar.

vLLM loads this file as a plug-in (entry point ``specdec`` of ``vllm.general_plugins``) and calls
``register()`` in each of its processes. The file is in the order in which it is best read:

1. **What it wraps**: five methods of vLLM's ``Scheduler``. Each wrapper calls vLLM's own method
   once with the same arguments, returns its result and lets its exceptions through.
2. **When it gives up**: all else is inside ``try``. The first error disables the plug-in for good,
   with one line in the log. Of a scheduler whose methods it does not know, it wraps the constructor
   alone, to say so.
3. **What it reads and counts** of steps and requests. It changes nothing in a request but its own
   attribute ``_specdec``, and keeps a bounded amount.
4. **What it sends**: hellos, and reports of totals and finished requests, as JSON, to one Unix
   socket, from which it never reads. No text, token or id of a request leaves the process.
5. **What it reads of vLLM's configuration** for the hello.

It starts no thread, waits for nothing, writes no file, and needs only Python's standard library.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
import os
import socket
import struct
import sys
import time
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, chain, islice
from math import ceil
from operator import add
from typing import Any, NamedTuple

VERSION = "0.1.0"  # of the sidecar that wrote this file
FORMAT = 3  # of the packets
SOCKET = os.environ.get("SPECDEC_PLUGIN__SOCKET") or "/run/specdec/plugin.sock"

log = logging.getLogger("vllm.specdec_plugin")  # logs where and how vLLM logs its own lines

# -------------------------------------------------------------------------------------------------
# 1. What it wraps
# -------------------------------------------------------------------------------------------------

# The methods, each with the parameters that it may have. If any of them has others, or is missing,
# none is wrapped.
#
# - ``update_from_output`` is called once a step.
# - ``make_spec_decoding_stats`` is called once for each request and step with draft tokens. Before
#   0.14 vLLM does not pass it the request's id. So it is not wrapped there, and the same numbers
#   are taken from the arguments of ``update_from_output``.
# - ``_free_request`` is called once at the end of a request, however it ends.
#
# The constructor is wrapped as well, to say hello to the sidecar, and ``schedule``, if it is there,
# to notice a pause.
NAMELESS = "self spec_decoding_stats num_draft_tokens num_accepted_tokens"
KNOWN = {
    "make_spec_decoding_stats": (f"{NAMELESS} num_invalid_spec_tokens request_id", NAMELESS),
    "update_from_output": ("self scheduler_output model_runner_output",),
    "_free_request": ("self request delay_free_blocks", "self request"),
}
# A call may omit arguments for which vLLM has defaults. The wrappers' last parameters are vLLM's,
# so they can have the same defaults.
WITH_DEFAULTS = (*functools.WRAPPER_ASSIGNMENTS, "__defaults__")


def register() -> None:
    """Wraps vLLM's Scheduler, if this process may have one.

    vLLM calls it in each of its processes. It never raises, since vLLM would then not start.
    """
    try:
        program = getattr(sys.modules["__main__"], "__spec__", None)
        if program is not None and program.name == "vllm.model_executor.models.registry":
            return  # vLLM inspects a model class in a process of its own

        if has_no_scheduler():
            return  # importing one would take time

        import vllm
        from vllm.v1.core.sched.scheduler import Scheduler

        install(Scheduler, vllm.__version__)
    except Exception as error:
        with suppress(Exception):  # a log handler may raise
            log.error("specdec %s: cannot observe this vLLM: %r", VERSION, error)


def has_no_scheduler() -> bool:
    """Whether this process is a worker or an API server.

    vLLM's first process may become the engine core, or fork it. A forked core loads no plug-in
    again: it inherits what this one has wrapped.
    """
    modules = sys.modules
    if "vllm.v1.worker.worker_base" not in modules or "vllm.v1.engine.core" in modules:
        return False
    processes = modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return True

    spawns = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD") == "spawn"
    return spawns and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0"


def install(scheduler_class: Any, vllm_version: Any = None, path: str = SOCKET) -> None:
    """Wraps the methods of vLLM's Scheduler, or of a class like it, unless they are wrapped.

    An instance then has its ``Observer`` in ``_specdec``, or None where it was never observed or no
    longer is.
    """
    if "_specdec" in vars(scheduler_class):
        return
    scheduler_class._specdec = None

    methods = {
        name: getattr(scheduler_class, name) for name in KNOWN if hasattr(scheduler_class, name)
    }
    refusal = misfit({name: parameters(method) for name, method in methods.items()})
    wrappers = {} if refusal else wrappers_of(**methods)
    construct = scheduler_class.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        try:
            observe(self, wrappers, refusal, vllm_version, path)
        except Exception as error:
            fail(self, "__init__", error)

    scheduler_class.__init__ = __init__
    for name, wrapper in wrappers.items():
        setattr(scheduler_class, name, wrapper)
    if wrappers and hasattr(scheduler_class, "schedule"):
        scheduler_class.schedule = pause_noticing(scheduler_class.schedule)


def observe(
    scheduler: Any, wrappers: dict[str, Any], refusal: str, vllm_version: Any, path: str
) -> None:
    """Says hello for a scheduler that has just been constructed, and begins to observe it.

    A subclass may have methods of its own in place of the wrappers. Nothing is reported until a
    step has shown that these call vLLM's (``Observer.check``).
    """
    own = [name for name, wrapper in wrappers.items() if getattr(type(scheduler), name) != wrapper]
    observer = Observer(scheduler, vllm_version, path, own)
    # Keeps the socket open once ``fail`` has cleared ``_specdec``: the sidecar then sees a plug-in
    # that is disabled, not a lost connection.
    scheduler._specdec_link = observer

    state = observer.state
    reason = f"{type(scheduler).__name__} has its own {' '.join(own)}" if own else ""
    if refusal:
        state = "refused"
        reason = refusal
    else:
        scheduler._specdec = observer

    observer.say(state, reason)
    with suppress(Exception):  # a log handler may raise
        log.info("specdec %s: %s for %s%s", VERSION, state, path, reason and f": {reason}")


def wrappers_of(
    make_spec_decoding_stats: Any, update_from_output: Any, _free_request: Any
) -> dict[str, Any]:
    """The wrappers around vLLM's methods, by name."""
    make = make_spec_decoding_stats
    update = update_from_output
    free = _free_request
    tells_request = "request_id" in inspect.signature(make).parameters  # from 0.14

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
                    # vLLM's counters leave out what the grammar rejected before verification, too.
                    drafted -= num_invalid_spec_tokens.get(request_id, 0)
                observer.count(self.requests[request_id], drafted, num_accepted_tokens)
            except Exception as error:
                fail(self, "count", error)
        return result

    @functools.wraps(update, WITH_DEFAULTS)
    def update_wrapper(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        to_count = None if tells_request else model_runner_output
        attempt(self, Observer.before_step, self, scheduler_output, to_count)
        result = update(self, scheduler_output, model_runner_output)
        attempt(self, Observer.after_step, self, scheduler_output, result)
        return result

    @functools.wraps(free)
    def free_wrapper(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = free(self, request, *args, **kwargs)
        attempt(self, Observer.end, request)
        return result

    wrappers = {"update_from_output": update_wrapper, "_free_request": free_wrapper}
    if tells_request:
        wrappers["make_spec_decoding_stats"] = make_wrapper
    return wrappers


def pause_noticing(schedule: Any) -> Any:
    """The wrapper around ``schedule``, which a subclass may replace without any harm."""

    @functools.wraps(schedule)
    def schedule_wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        attempt(self, Observer.before_schedule)
        return schedule(self, *args, **kwargs)

    return schedule_wrapper


# -------------------------------------------------------------------------------------------------
# 2. When it gives up
# -------------------------------------------------------------------------------------------------


def misfit(found: dict[str, str]) -> str:
    """Names the methods that are missing or have parameters that are not known; "" if none."""
    return ", ".join(
        f"{name}({found.get(name, 'missing')})"
        for name in KNOWN
        if found.get(name) not in KNOWN[name]
    )


def parameters(method: Any) -> str:
    """Names a method's parameters.

    Those that cannot be given both by position and by name are marked with ``*``.
    """
    found = inspect.signature(method).parameters.values()
    return " ".join(
        one.name if one.kind is one.POSITIONAL_OR_KEYWORD else one.name + "*" for one in found
    )


def attempt(scheduler: Any, act: Callable[..., None], *args: Any) -> None:
    """Lets the scheduler's observer act, if it has one; whatever it raises ends here."""
    observer = scheduler._specdec
    if observer is not None:
        try:
            act(observer, *args)
        except Exception as error:
            fail(scheduler, act.__name__, error)


def fail(scheduler: Any, part: str, error: Exception) -> None:
    """Disables the plug-in: from now on, the wrappers only call vLLM's own methods.

    What is logged and told has no error text, which may name a request.
    """
    observer = scheduler._specdec
    scheduler._specdec = None
    with suppress(Exception):  # a log handler may raise
        own_file = fail.__code__.co_filename
        frames = traceback.extract_tb(error.__traceback__)
        line = next(frame.lineno for frame in reversed(frames) if frame.filename == own_file)
        state = "disabled"
        reason = f"{part}: {type(error).__name__} at line {line}"
        if isinstance(error, NotCalledError):
            state = "refused"
            reason = f"{type(scheduler).__name__} has its own {error}, which does not call vLLM's"

        log.error("specdec %s is %s, and vLLM goes on without it: %s", VERSION, state, reason)
        if observer is not None:  # else its constructor failed
            observer.release_requests()
            observer.connect_due = 0.0  # no report will try again
            observer.say(state, reason)


class NotCalledError(Exception):
    """The scheduler's class has a method of its own, named here, that does not call vLLM's."""


# -------------------------------------------------------------------------------------------------
# 3. What it reads and counts
# -------------------------------------------------------------------------------------------------

ABOVE_2 = 201  # the key of all temperatures above 2, in hundredths; 0 to 200 are themselves
MAX_EXPONENT = 20  # of the keys that are powers
PAUSE = 0.1  # seconds after a step; if vLLM schedules nothing for so long, no step has begun
MIXED = 64  # a step with more prompt tokens than this is a mixed one
MAX_SAMPLED = 64  # requests whose context is looked at, once a report
# Names of adapters have at most this many rows, and ``OTHER``. The first half of the rows goes to
# those that come first, the second half to those that have been used by this many requests.
MAX_ADAPTERS = 256
OTHER = "other"
BUSY = 32
MAX_CANDIDATES = 1024  # adapters without a row whose requests are counted
MAX_POSITIONS = 32  # further ones are added to the last
MAX_FINISHED = 4096  # finished requests that wait; the oldest are dropped and counted as lost

OUTCOMES = {
    "STOPPED": "stopped",
    "REPETITION": "repetition",
    "LENGTH_CAPPED": "length",
    "IGNORED": "length",
    "ABORTED": "aborted",
}  # any other status of vLLM's: "error"
# Sampling parameters that vLLM from 0.14 on rejects while it speculates, and the values that switch
# them off.
UNSUPPORTED = {"min_p": [0, None], "logit_bias": [None, {}]}

# An output ends in a loop if its last tokens repeat this often, over at least so many tokens, with
# a period of up to 200. For periods from one number to another, so many of the last tokens must
# occur again, and so many places at which they do are looked at.
LOOP_TIMES = 3
LOOP_TOKENS = 64
LOOP_PERIODS = ((1, 21, 43), (22, 63, 44), (64, 200, 128))
LOOP_CANDIDATES = 3
LOOP_SEARCHED = 200 + 128


class Tally(NamedTuple):
    """Finished requests by outcome, and what was drafted and accepted."""

    stopped: int = 0
    length: int = 0
    repetition: int = 0
    aborted: int = 0
    error: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def plus(self, growth: Tally) -> Tally:
        """The sum of both."""
        return Tally(*map(add, self, growth))


class Key(NamedTuple):
    """What a request is counted by: its key in the table of each name, which has a row a key."""

    temperature: int
    prompt_tokens: int
    output: str
    sampling: str
    adapter: str

    @classmethod
    def of(cls, request: Any, adapters: Adapters) -> Key:
        """Those of one of vLLM's requests; ``adapters`` says which adapters have a row."""
        return cls(
            temperature=hundredths(parameter(request.sampling_params, "temperature", 1.0)),
            prompt_tokens=exponent(request.num_prompt_tokens),
            output="structured" if request.use_structured_output else "free",
            sampling=sampling(request.sampling_params),
            adapter=adapters.key_of(request),
        )


TABLES = (*Key._fields, "steps")  # and "ending", where vLLM shows a request's output tokens


class Growth:
    """What requests with the same ``Key`` have done since the last report was cut.

    Requests count here, not in the tables. So a report is one cut though it takes many steps: it
    takes over all growth at once, and counting goes on in new objects.
    """

    __slots__ = ("by_accepted", "by_drafted", "ended", "is_cut", "postponed", "since")

    def __init__(self, depth: int, since: float) -> None:
        """``depth`` is the most tokens that a draft has."""
        self.is_cut = False  # whether a report has taken it over, so that nothing more may count
        self.since = since
        self.by_drafted = [0] * (depth + 1)  # drafts by their number of tokens
        # Drafts by the number of tokens accepted. The last place, at index -1, is for those that
        # came back without any token: -1 accepted in the counters of vLLM up to 0.15.
        self.by_accepted = [0] * (depth + 2)
        self.postponed = 0  # of these -1, what is not to be subtracted yet; see Record.owe
        self.ended: list[str] = []  # outcomes of finished requests

    def tally(self) -> Tally:
        """In the terms of vLLM's counters; accepted tokens may be negative up to vLLM 0.15."""
        drafts = sum(self.by_drafted)
        draft_tokens = sum(tokens * number for tokens, number in enumerate(self.by_drafted))

        accepted = sum(tokens * number for tokens, number in enumerate(self.by_accepted[:-1]))
        accepted_tokens = accepted - self.by_accepted[-1] + self.postponed

        return Tally(
            drafts=drafts,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted_tokens,
            **Counter(self.ended),
        )


class StepKey(NamedTuple):
    """What steps are counted by.

    Up to ``2**running_exponent`` requests decode, and their mean context is at most
    ``4**context_exponent`` tokens.
    """

    running_exponent: int
    context_exponent: int
    is_mixed: bool | None


class Steps:
    """Steps, their seconds, and what was done in them.

    ``decodes`` are the requests that decoded, ``tokens`` what these got, ``request_seconds`` the
    products of requests and seconds, ``context_tokens`` those of requests and mean context.
    """

    __slots__ = (
        "context_tokens",
        "decodes",
        "drafts",
        "prefill_tokens",
        "request_seconds",
        "seconds",
        "steps",
        "tokens",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        self.decodes = 0
        self.request_seconds = 0.0
        self.tokens = 0
        self.prefill_tokens = 0
        self.context_tokens = 0
        self.drafts = 0

    def plus(self, growth: Steps) -> Steps:
        """The sum of both."""
        both = Steps()
        for name in self.__slots__:
            setattr(both, name, getattr(self, name) + getattr(growth, name))
        return both

    def _asdict(self) -> dict[str, Any]:
        """As it is sent."""
        return {name: getattr(self, name) for name in self.__slots__}


class Row:
    """A row of a table: what has been counted since the engine started."""

    __slots__ = ("counts", "since")

    def __init__(self, since: float, counts: Any) -> None:
        self.since = since  # when its key first appeared
        self.counts = counts  # Tally or Steps

    def add(self, growth: Any) -> None:
        """Adds growth of the same kind."""
        self.counts = self.counts.plus(growth)

    def packed(self) -> dict[str, Any]:
        """The counts as they are sent."""
        return self.counts._asdict()


class TemperatureRow(Row):
    """A row that also has how many drafts had, and accepted, a token at each position."""

    __slots__ = ("by_accepted", "by_drafted")

    def __init__(self, since: float, counts: Tally) -> None:
        super().__init__(since, counts)
        self.by_drafted: list[int] = []
        self.by_accepted: list[int] = []

    def add_positions(self, growth: Growth) -> None:
        """Adds the drafts of growth."""
        self.by_drafted = sums(self.by_drafted, growth.by_drafted)
        self.by_accepted = sums(self.by_accepted, growth.by_accepted[:-1])

    def packed(self) -> dict[str, Any]:
        """The counts as they are sent."""
        drafted_at = by_position(self.by_drafted)
        accepted_at = by_position(self.by_accepted)
        return {**self.counts._asdict(), "drafted_at": drafted_at, "accepted_at": accepted_at}


class Cut(NamedTuple):
    """What has been counted from the cut before it to this one: a report is of one cut.

    ``finished`` is the number of finished requests that wait at that moment, with those that were
    dropped before it: later ones are not of this cut.
    """

    growth_by_key: dict[Key, Growth]
    steps_by_key: dict[StepKey, Steps]
    tallies_by_ending: dict[str, Tally]
    at: float  # Unix seconds
    finished: int


class Record:
    """What is kept of one of vLLM's requests, in its attribute ``_specdec``."""

    __slots__ = (
        "accepted_tokens",
        "draft_tokens",
        "drafts",
        "earlier_tokens",
        "first_token_at",
        "growth",
        "has_ended",
        "key",
        "owed",
        "prefill_stats",
        "sampling_params",
        "turn_tokens",
    )

    def __init__(self, request: Any, key: Key, growth: Growth) -> None:
        self.sampling_params = request.sampling_params
        self.key = key
        # It may be cut: ``count`` and ``end`` replace it before they add to it.
        self.growth = growth

        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.owed = 0

        # Output tokens of a session's earlier turns, and so far of this one. vLLM forgets them.
        self.earlier_tokens = 0
        self.turn_tokens = 0

        self.first_token_at = 0.0  # Unix seconds
        self.has_ended = False
        # From 0.20 it has the number of cached tokens, and vLLM drops it at the first token.
        self.prefill_stats = getattr(request, "prefill_stats", None)

    def owe(self, accepted: int) -> None:
        """Counts a draft that came back without any token, which vLLM up to 0.15 books as -1.

        Subtracted at once, it could make a total fall, and finished requests sum to more than the
        totals. So it is postponed until the request has ended, and then subtracted, at most down
        to 0 accepted tokens. Until then the totals are above vLLM's by so much.
        """
        if accepted != -1:
            raise ValueError
        self.owed += 1
        self.growth.postponed += 1

    def is_of_this_turn(self, request: Any) -> bool:
        """Whether a session has not gone on since: with new parameters, and without output."""
        is_begun = not self.turn_tokens or request.num_output_tokens
        return self.sampling_params is request.sampling_params and is_begun

    def go_on_from(self, turn: Record) -> None:
        """Takes over what a session did in its earlier turns, for its finished request."""
        self.drafts = turn.drafts
        self.draft_tokens = turn.draft_tokens
        self.accepted_tokens = turn.accepted_tokens
        self.owed = turn.owed
        self.earlier_tokens = turn.earlier_tokens + turn.turn_tokens

    def settle(self) -> None:
        """Subtracts what it owes, in the growth that it has now."""
        paid = min(self.owed, self.accepted_tokens)
        self.accepted_tokens -= paid
        self.growth.postponed -= paid


class Adapters:
    """Which adapters have a row of their own."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        self.candidates: Counter[str] = Counter()  # requests of others

    def key_of(self, request: Any) -> str:
        """The key of one more request: its adapter's name, "" without one, or "other"."""
        if request.lora_request is None:
            return ""
        name = request.lora_request.lora_name[:200].encode("utf-8", "replace").decode()
        if name.rstrip("'") == OTHER:
            name += "'"  # so that none has the row of all others
        return self.key(name) if name else ""

    def key(self, name: str) -> str:
        """The key of one more request of this adapter: its name, or "other"."""
        if name in self.named:
            return name

        is_named = len(self.named) < MAX_ADAPTERS // 2
        if not is_named and len(self.named) < MAX_ADAPTERS:
            self.candidates[name] += 1
            is_named = self.candidates[name] >= BUSY
            self.bound()
        if not is_named:
            return OTHER

        self.named.add(name)
        self.candidates.pop(name, None)
        return name

    def bound(self) -> None:
        """Halves all counts if there are too many; those that are used seldom are forgotten."""
        if len(self.candidates) > MAX_CANDIDATES:
            halves = {name: number // 2 for name, number in self.candidates.items()}
            self.candidates = Counter({name: half for name, half in halves.items() if half})


class Counting:
    """Counts what the requests of one Scheduler do.

    The scheduler's class may have its ``own`` methods beside vLLM's, which are named.
    """

    def __init__(self, scheduler: Any, own: list[str]) -> None:
        self.own = own
        self.state = "checking" if own else "observing"
        # vLLM's requests before the current step, while its class is checked.
        self.requests: dict[str, Any] = {}

        self.depth = scheduler.num_spec_tokens  # also the length of vLLM's own lists
        # What has been counted since the last cut.
        self.growth_by_key: dict[Key, Growth] = {}
        self.steps_by_key: dict[StepKey, Steps] = {}
        self.tallies_by_ending: dict[str, Tally] = {}

        self.adapters = Adapters()
        # Whether vLLM shows a request's output tokens; None until there is a request.
        self.shows_output: bool | None = None
        self.starting: dict[str, Any] = {}  # scheduled requests that have no token yet, by id
        self.sessions: dict[str, Any] = {}  # requests that more input may follow, by id
        self.finished: deque[str] = deque(maxlen=MAX_FINISHED)  # finished requests, as JSON
        self.lost = 0  # finished requests that were dropped
        self.step_count = 0
        self.generation_tokens = 0

        # The current step.
        self.clock = time.monotonic()
        self.now = time.time()
        self.step_seconds = 0.0  # 0: unknown
        # The mean tokens of a decoding request as last sampled, the exponent of these, and whether
        # that was since the last cut.
        self.context = 0
        self.context_exponent = 0
        self.is_context_sampled = False
        # When the last steps ended. Two times with two pipeline stages, since a request is then in
        # every other step.
        stages = getattr(scheduler.vllm_config.parallel_config, "pipeline_parallel_size", 1)
        self.ends: deque[float] = deque(maxlen=stages)
        self.active_at = 0.0  # when vLLM last scheduled, or had ended a step

    # A step

    def before_schedule(self) -> None:
        """Before vLLM's ``schedule``: what it did not do anything in is no part of a step.

        So are pauses (``/pause``, ``/sleep``), and calls to all workers that stop the engine.
        """
        clock = time.monotonic()
        if clock - self.active_at > PAUSE:
            self.ends.clear()
        self.active_at = clock

    def before_step(self, scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> None:
        """Before vLLM's ``update_from_output``, which frees requests that end.

        ``model_runner_output`` is None where ``make_spec_decoding_stats`` tells what to count.
        """
        clock = time.monotonic()
        self.clock = clock
        self.now = time.time()
        is_known = len(self.ends) == self.ends.maxlen
        self.step_seconds = clock - self.ends[0] if is_known else 0.0
        self.ends.append(clock)
        # An engine that goes round without scheduling anything makes no step that counts.
        if getattr(scheduler_output, "total_num_scheduled_tokens", 1):
            self.step_count += 1

        requests = scheduler.requests
        if self.own:
            self.requests = requests.copy()
        for new in scheduler_output.scheduled_new_reqs:
            request = requests.get(new.req_id)
            if request is None or is_pooling(request):
                continue
            self.follow(request)
            # Model runner V2 lists a preempted request as new again; that one has tokens.
            if not request.num_output_tokens:
                self.starting[new.req_id] = request

        if model_runner_output is not None:
            self.count_all(requests, scheduler_output, model_runner_output)

    def count_all(
        self, requests: dict[str, Any], scheduler_output: Any, model_runner_output: Any
    ) -> None:
        """Counts a step's drafts by the rule of vLLM before 0.14."""
        index = model_runner_output.req_id_to_index
        sampled = model_runner_output.sampled_token_ids
        for request_id, draft in scheduler_output.scheduled_spec_decode_tokens.items():
            request = requests.get(request_id)
            if request is None or not draft:  # None: aborted while the model ran
                continue
            accepted = len(sampled[index[request_id]]) - 1 if len(sampled) else -1
            self.count(request, len(draft), accepted)

    def count(self, request: Any, drafted: int, accepted: int) -> None:
        """Counts one draft of one request.

        It must equal vLLM's own counters, or the sidecar withholds the split. It is the only part
        that runs for each request and step, so it does not ask whether the sampling parameters are
        still those of the record, as ``follow`` does.
        """
        try:
            record = request._specdec
        except AttributeError:
            record = self.follow(request)
        growth = record.growth
        if growth.is_cut:
            growth = self.growth_of(record.key)
            record.growth = growth

        growth.by_drafted[drafted] += 1
        growth.by_accepted[accepted] += 1  # at -1, the last place, for no token at all
        record.drafts += 1
        record.draft_tokens += drafted
        if accepted < 0:
            record.owe(accepted)
        else:
            record.accepted_tokens += accepted

    def after_step(self, scheduler: Any, scheduler_output: Any, result: Any) -> None:
        """After vLLM's ``update_from_output``, whose ``result`` has what the step generated."""
        # An object up to 0.9.1, then a dict by client.
        clients = result.values() if isinstance(result, dict) else [result]
        if self.own:
            for client in clients:
                self.check(scheduler_output.scheduled_spec_decode_tokens, client.outputs)

        if self.sessions:
            self.count_turns(chain.from_iterable(client.outputs for client in clients))

        lengths = [len(output.new_token_ids) for client in clients for output in client.outputs]
        decodes = len(lengths) - lengths.count(0)
        tokens = sum(lengths)
        self.generation_tokens += tokens

        if self.starting:
            first_tokens = self.take_started()
            decodes -= len(first_tokens)
            tokens -= sum(first_tokens)
        if decodes > 0:
            if not self.is_context_sampled:
                outputs = chain.from_iterable(client.outputs for client in clients)
                self.sample_context(scheduler.requests, [*outputs])
            if self.step_seconds:
                self.count_step(scheduler_output, decodes, tokens)

    def count_turns(self, outputs: Iterable[Any]) -> None:
        """Counts what streaming sessions generate: vLLM forgets the output of a turn."""
        for output in outputs:
            request = self.sessions.get(output.request_id)
            if request is None:
                continue
            request._specdec.turn_tokens += len(output.new_token_ids)

    def take_started(self) -> list[int]:
        """The number of tokens of each request that got its first ones in this step.

        For these, the step was one of prefill.
        """
        first_tokens = []
        for request_id, request in [*self.starting.items()]:
            record = request._specdec
            tokens = request.num_output_tokens
            if tokens or record.has_ended:
                del self.starting[request_id]

            if tokens:
                record.first_token_at = record.first_token_at or self.now
                first_tokens.append(tokens)

        return first_tokens

    def count_step(self, scheduler_output: Any, decodes: int, tokens: int) -> None:
        """Counts a step in which requests decoded."""
        drafts = scheduler_output.scheduled_spec_decode_tokens
        scheduled = getattr(scheduler_output, "num_scheduled_tokens", None)
        prefill_tokens = 0
        if scheduled is not None and len(scheduled) > decodes:  # else all of them decoded
            decoded = decodes + sum(map(len, drafts.values()))
            prefill_tokens = max(sum(scheduled.values()) - decoded, 0)

        is_mixed = None if scheduled is None else prefill_tokens > MIXED
        key = StepKey(exponent(decodes), self.context_exponent, is_mixed)
        steps = self.steps_by_key.get(key)
        if steps is None:
            steps = Steps()
            self.steps_by_key[key] = steps
        steps.steps += 1
        steps.seconds += self.step_seconds
        steps.decodes += decodes
        steps.request_seconds += decodes * self.step_seconds
        steps.tokens += tokens
        steps.prefill_tokens += prefill_tokens
        steps.context_tokens += decodes * self.context
        steps.drafts += len(drafts)

    def sample_context(self, requests: dict[str, Any], outputs: list[Any]) -> None:
        """Looks at how many tokens some of the decoding requests have: once a report."""
        self.is_context_sampled = True
        every = -(-len(outputs) // MAX_SAMPLED) or 1
        decoding = [requests.get(output.request_id) for output in outputs[::every]]

        contexts = [
            request.num_prompt_tokens + request.num_output_tokens
            for request in decoding
            if request is not None
        ]
        if contexts:
            self.context = round(sum(contexts) / len(contexts))
            self.context_exponent = (exponent(self.context) + 1) // 2

    def check(self, drafts: dict[str, Any], outputs: list[Any]) -> None:
        """Checks that the class's own methods call vLLM's.

        A request's drafts show it first, or its end where nothing is drafted: the state is then
        ``observing``, and the next report is sent. The check goes on until a request has ended.
        ``NotCalledError`` if they do not.
        """
        for output in outputs:
            request = self.requests.get(output.request_id)
            record = getattr(request, "_specdec", None)
            if record is None or not output.new_token_ids:  # None: a pooling request
                continue

            drafted = drafts.get(output.request_id)
            has_ended = output.finish_reason is not None
            if drafted and not record.drafts:
                raise NotCalledError("make_spec_decoding_stats")
            if has_ended and not record.has_ended:
                raise NotCalledError("_free_request")
            if self.state == "checking" and (drafted or (has_ended and not self.depth)):
                self.state = "observing"
            if self.state == "observing" and has_ended:
                self.own = []
                self.requests = {}

    # A request

    def follow(self, request: Any) -> Record:
        """The record of a request.

        It begins anew if the request is new, or a session goes on with other sampling parameters.
        """
        earlier = request.__dict__.get("_specdec")
        if earlier is not None and earlier.is_of_this_turn(request):
            return earlier
        if earlier is None and self.own and request.num_output_tokens:
            raise NotCalledError("update_from_output")  # it got them in no step of vLLM's

        if self.shows_output is None:
            self.shows_output = hasattr(request, "output_token_ids")
        key = Key.of(request, self.adapters)
        record = Record(request, key, self.growth_of(key))
        if earlier is not None:
            record.go_on_from(earlier)
        if getattr(request, "resumable", False):  # from 0.16
            self.sessions[request.request_id] = request
        request._specdec = record
        return record

    def growth_of(self, key: Key) -> Growth:
        """What requests with this key have done since the last cut."""
        growth = self.growth_by_key.get(key)
        if growth is None:
            growth = Growth(self.depth, self.now)
            self.growth_by_key[key] = growth
        return growth

    def end(self, request: Any) -> None:
        """Counts the end of a request."""
        if is_pooling(request):
            return
        record = self.follow(request)
        if record.has_ended:  # with a KV connector, a request can end a second time
            return
        record.has_ended = True
        self.sessions.pop(request.request_id, None)

        outcome = OUTCOMES.get(request.status.name.replace("FINISHED_", ""), "error")
        record.growth = self.growth_of(record.key)
        record.growth.ended.append(outcome)
        record.settle()
        ending = self.count_ending(request, record, outcome)

        if len(self.finished) == self.finished.maxlen:
            self.lost += 1  # the oldest, which the next line drops
        self.finished.append(finished_request(request, record, outcome, ending, self.now))

    def count_ending(self, request: Any, record: Record, outcome: str) -> str | None:
        """Says how the output of a finished request ends, and counts it; None if unknown.

        An error here disables nothing but this.
        """
        if not self.shows_output:
            return None
        try:
            ending = ending_of(request, outcome)
        except Exception as error:
            self.shows_output = False
            with suppress(Exception):  # a log handler may raise
                log.warning(
                    "specdec %s: cannot tell how outputs end: %s", VERSION, type(error).__name__
                )
            return None

        one = Tally(
            drafts=record.drafts,
            draft_tokens=record.draft_tokens,
            accepted_tokens=record.accepted_tokens,
            **{outcome: 1},
        )
        self.tallies_by_ending[ending] = self.tallies_by_ending.get(ending, Tally()).plus(one)
        return ending

    def take(self) -> Cut:
        """All that has been counted since the last cut; from now on, it is counted anew."""
        finished = len(self.finished) + self.lost
        cut = Cut(
            growth_by_key=self.growth_by_key,
            steps_by_key=self.steps_by_key,
            tallies_by_ending=self.tallies_by_ending,
            at=self.now,
            finished=finished,
        )

        for growth in self.growth_by_key.values():
            growth.is_cut = True
        self.growth_by_key = {}
        self.steps_by_key = {}
        self.tallies_by_ending = {}
        self.is_context_sampled = False
        return cut


def is_pooling(request: Any) -> bool:
    """Whether a request generates nothing; another's parameters may be None as well, by others."""
    has_none = request.sampling_params is None
    return has_none and getattr(request, "pooling_params", "not shown") is not None


def finished_request(
    request: Any, record: Record, outcome: str, ending: str | None, now: float
) -> str:
    """The record of a finished request, as JSON: its keys, and what it alone has."""
    output_tokens = record.earlier_tokens + request.num_output_tokens
    # A session waits for its client, so times would say nothing about the engine.
    is_session = getattr(request, "resumable", False) or record.earlier_tokens
    last_token = now if request.num_output_tokens and not is_session else None
    unsupported = [
        name
        for name, off in UNSUPPORTED.items()
        if getattr(record.sampling_params, name, off[0]) not in off
    ]

    own = {
        "prompt_tokens": max(request.num_prompt_tokens, 0),
        "cached_tokens": cached_tokens(request, record.prefill_stats),
        "output_tokens": output_tokens,
        "outcome": outcome,
        "ending": ending,
        "drafts": record.drafts,
        "draft_tokens": record.draft_tokens,
        "accepted_tokens": record.accepted_tokens,
        "arrival": unix_seconds(getattr(request, "arrival_time", None)),  # from 0.9.1
        "first_token": None if is_session else record.first_token_at or last_token,
        "last_token": last_token,
        "parameters": unsupported,
    }
    return f"{told_keys(record.key)},{encode(own)[1:]}"


@functools.lru_cache(maxsize=1024)  # many requests have the same
def told_keys(key: Key) -> str:
    """What a finished request tells of its keys: the beginning of a JSON object."""
    keys = key._asdict()
    del keys["prompt_tokens"]  # of which the request tells the number itself
    keys["structured"] = keys.pop("output") == "structured"
    keys["adapter"] = key.adapter or None
    return encode(keys)[:-1]


def unix_seconds(value: Any) -> float | None:
    """A time by the API server's clock; None if it is none."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 2**40 else None


def cached_tokens(request: Any, prefill_stats: Any) -> int | None:
    """Prompt tokens that were found in the prefix cache; None if this vLLM does not tell."""
    source = request if prefill_stats is None else prefill_stats
    tokens = getattr(source, "num_cached_tokens", None)
    return tokens if isinstance(tokens, int) and tokens >= 0 else None


def ending_of(request: Any, outcome: str) -> str:
    """How a request's output ends: in a ``loop``, ``empty``, or ``normal``.

    A request that stopped by itself ended in its end token, and is in no loop.
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

    Clients choose the output, so it takes about the same whatever that is. With a period, the last
    tokens occur again that many before: this is looked for in the lowest byte of each.
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


def sampling(parameters: Any) -> str:
    """How a request's tokens are chosen.

    Top-k, top-p and min-p lower the acceptance rate, since they shape the target's distribution and
    not the draft's.
    """
    read = functools.partial(parameter, parameters)
    if not read("temperature", 1.0):
        return "greedy"

    if read("presence_penalty", 0) or read("frequency_penalty", 0):
        return "penalties"
    if read("repetition_penalty", 1) != 1:
        return "penalties"
    if read("top_k", 0) > 0 or read("top_p", 1) < 1 or read("min_p", 0) > 0:
        return "filtered"
    return "plain"


def parameter(parameters: Any, name: str, default: float) -> float:
    """A sampling parameter; vLLM's default where another plug-in has made it no number."""
    try:
        return float(getattr(parameters, name, default))
    except (TypeError, ValueError):
        return default


def hundredths(temperature: float) -> int:
    """A temperature in hundredths, rounded up; at most ``ABOVE_2``."""
    limited = min(max(0, temperature), ABOVE_2 / 100)
    return ceil(round(100 * limited, 6))


def exponent(number: int) -> int:
    """The smallest n for which ``number`` is at most 2**n."""
    return min(max(number - 1, 0).bit_length(), MAX_EXPONENT)


def sums(some: list[int], more: list[int]) -> list[int]:
    """Adds two lists, place by place; an empty one is all zeros."""
    return [one + another for one, another in zip(some, more)] if some else [*more]


def by_position(by_length: list[int]) -> list[int]:
    """Turns how many had 0, 1, … tokens into how many had a token at position 0, 1, ….

    Positions from ``MAX_POSITIONS`` on are added to the last.
    """
    at_least = [*accumulate(by_length[:0:-1])][::-1]
    last = MAX_POSITIONS - 1
    if len(at_least) <= last:
        return at_least
    return [*at_least[:last], sum(at_least[last:])]


# -------------------------------------------------------------------------------------------------
# 4. What it sends
# -------------------------------------------------------------------------------------------------

PERIOD = 1.0  # seconds between reports while there is traffic
# A report comes sooner if generation tokens have grown by so much since the last: else the split of
# a young engine would be far behind its counters.
EARLY_GROWTH = 1.05
EARLY_PERIOD = 0.1
# Seconds from one attempt to connect to the next: twice as many after each that fails, to so many.
CONNECT_PAUSE = 1.0
LONGEST_CONNECT_PAUSE = 10.0
# What a report may take of a step: a share of the step's length, within these limits in seconds.
SHARE = 0.01
LEAST_SECONDS = 20e-6
MOST_SECONDS = 500e-6
FOLD_SECONDS = 10e-6  # what adding one Growth to the tables takes
PACKET_SECONDS = 15e-6  # the least that a packet takes
ROW_SECONDS = 10e-6  # what a row takes in one
LEAST_ROWS = 4
MOST_ROWS = 32  # a packet must stay below 65,536 bytes
MAX_FINISHED_SENT = 64
MAX_BYTES = 60_000

encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Observer(Counting):
    """Counts for one Scheduler, and reports to the sidecar."""

    def __init__(self, scheduler: Any, vllm_version: Any, path: str, own: list[str]) -> None:
        super().__init__(scheduler, own)
        self.reason = ""  # of the state
        self.tables: dict[str, dict[Any, Any]] = {name: {} for name in (*TABLES, "ending")}
        self.total = Tally()  # of each table but "steps" and "ending"
        self.unsent: dict[tuple[str, Any], None] = {}  # rows that have changed, by table and key
        self.slices: Iterator[float] | None = None  # the report in progress
        self.due = 0.0  # when the next one is, by the monotonic clock
        self.early_due = 0.0  # the same if so many tokens have been generated by then:
        self.early_tokens = 0.0
        self.is_idle = False  # whether the engine has nothing to do after the current step

        self.hello = introduction(scheduler, vllm_version)
        self.told: tuple[str, list[str]] | None = None  # the state and tables of the last hello
        self.path = path
        self.process = os.getpid()
        self.socket: Any = None  # None: not connected
        self.connect_due = 0.0  # when to try to connect again, by the monotonic clock
        self.connect_pause = CONNECT_PAUSE
        drop_in_children(self)

    def after_step(self, scheduler: Any, scheduler_output: Any, result: Any) -> None:
        """Counts the step, and reports if it is time."""
        super().after_step(scheduler, scheduler_output, result)
        self.go_on(scheduler)
        self.active_at = time.monotonic()

    def go_on(self, scheduler: Any) -> None:
        """Begins a report if it is time, and goes on with the one in progress.

        A report takes a small share of each step, and at least one of its parts. If the engine is
        idle it is sent to the end, since the next step may be far off.
        """
        self.is_idle = not scheduler.running and not scheduler.get_num_unfinished_requests()
        if self.is_idle:  # also in the step that vLLM runs after an abort, to tell its workers
            self.ends.clear()  # the next step's length is unknown
        if self.is_last() or (self.slices is None and self.is_due()):
            # An idle engine finishes the report in progress, and then makes its last one.
            self.slices = chain(self.slices or (), self.report(scheduler))

        if self.slices is None:
            return

        until = time.perf_counter() + self.allowance()
        for seconds in self.slices:
            if not self.is_idle and time.perf_counter() + seconds > until:
                return

        self.slices = None

    def is_last(self) -> bool:
        """Whether an idle engine has something to tell.

        It may go round without end, such as while the KV cache of a finished request is sent.
        """
        return self.is_idle and bool(self.growth_by_key) and self.may_send()

    def is_due(self) -> bool:
        """Whether a report is: after a period, or sooner if the totals have grown much."""
        clock = self.clock
        is_early = clock >= self.early_due and self.generation_tokens > self.early_tokens
        return clock >= self.due or (is_early and self.may_send())

    def may_send(self) -> bool:
        """Whether it is connected, or may try to be."""
        return self.socket is not None or self.clock >= self.connect_due

    def rows_allowed(self) -> int:
        """Rows in the next packet: the more, the fewer packets the sidecar must read."""
        if self.is_idle:
            return MOST_ROWS
        affordable = int((self.allowance() - PACKET_SECONDS) / ROW_SECONDS)
        return min(max(affordable, LEAST_ROWS), MOST_ROWS)

    def allowance(self) -> float:
        """Seconds that a report may take of this step."""
        return min(max(LEAST_SECONDS, SHARE * self.step_seconds), MOST_SECONDS)

    def report(self, scheduler: Any) -> Iterator[float]:
        """Sends one cut, in parts; yields the seconds that the next part may take, before it.

        All numbers are those of the moment when it begins. What the socket does not take goes with
        the next report.
        """
        clock = time.monotonic()
        self.due = clock + PERIOD
        self.early_due = clock + EARLY_PERIOD
        self.early_tokens = self.generation_tokens * EARLY_GROWTH

        self.introduce()
        end = self.heartbeat(scheduler)
        cut = self.take()
        yield from self.fold_cut(cut)
        if self.state == "checking" or self.socket is None:
            return  # what was counted is told once it is known to be all, and there is a sidecar

        end["total"] = self.total._asdict()
        yield from self.send_cut(cut, end)

    def introduce(self) -> None:
        """Says hello if the sidecar does not know who reports, or what."""
        if self.process != os.getpid():
            self.drop_connection()
        is_told = self.told == (self.state, self.named_tables())
        if self.socket is None or self.state == "checking" or not is_told:
            self.say(self.state, self.reason)

    def fold_cut(self, cut: Cut) -> Iterator[float]:
        """Adds a cut to the total and the tables."""
        for key, growth in cut.growth_by_key.items():
            yield FOLD_SECONDS
            self.fold(key, growth)
        for step_key, steps in cut.steps_by_key.items():
            yield FOLD_SECONDS
            self.row("steps", step_key, cut.at).add(steps)
        if self.shows_output:  # else the table is not named any more
            for ending, tally in cut.tallies_by_ending.items():
                self.row("ending", ending, cut.at).add(tally)

    def send_cut(self, cut: Cut, end: dict[str, Any]) -> Iterator[float]:
        """Sends the rows that have changed, and the finished requests of the cut."""
        # ``cut.finished`` and ``self.lost`` count from the engine's start, so what is between them
        # waits; while this goes on, some of it may be dropped.
        last = cut.finished
        is_sent = False
        while not is_sent:
            yield PACKET_SECONDS
            rows = [*islice(self.unsent, self.rows_allowed())]
            tables = encode(self.packed(rows))
            has_all_rows = len(rows) == len(self.unsent)
            finished = self.packable(last - self.lost, len(tables.encode())) if has_all_rows else []
            if not self.send_report(tables, finished, end if has_all_rows else None):
                return

            for row in rows:
                del self.unsent[row]
            last -= len(finished)
            for _ in finished:
                self.finished.popleft()
            is_sent = has_all_rows and last <= self.lost

    def heartbeat(self, scheduler: Any) -> dict[str, Any]:
        """What a report says of the engine at its moment."""
        running = len(scheduler.running)
        return {
            "lost": self.lost,
            "at": self.now,
            "steps": self.step_count,
            "generation_tokens": self.generation_tokens,
            "running": running,
            "waiting": max(scheduler.get_num_unfinished_requests() - running, 0),
        }

    def fold(self, key: Key, growth: Growth) -> None:
        """Adds growth to the total and to a row of each table."""
        tally = growth.tally()
        if tally.accepted_tokens < 0:
            # Totals never fall, so what vLLM up to 0.15 subtracts is kept for the next cut. If
            # nothing was drafted since, it never will be made up for.
            if tally.drafts:
                self.growth_of(key).postponed += tally.accepted_tokens
            tally = tally._replace(accepted_tokens=0)
        if tally.accepted_tokens > tally.draft_tokens:
            raise ValueError  # more accepted than drafted: vLLM passes other numbers than known

        self.total = self.total.plus(tally)
        for table, row_key in zip(key._fields, key):
            self.row(table, row_key, growth.since).add(tally)
        self.tables["temperature"][key.temperature].add_positions(growth)

    def row(self, table: str, key: Any, since: float) -> Any:
        """A row that is about to change: a new one where there is none."""
        rows = self.tables[table]
        if key not in rows:
            kind = TemperatureRow if table == "temperature" else Row
            rows[key] = kind(since, Steps() if table == "steps" else Tally())
        self.unsent[table, key] = None
        return rows[key]

    def packed(self, rows: list[tuple[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """Rows as they are sent, by table."""
        tables: dict[str, list[dict[str, Any]]] = {}
        for table, key in rows:
            row = self.tables[table][key]
            packed = {"key": key, "since": row.since, "counts": row.packed()}
            tables.setdefault(table, []).append(packed)
        return tables

    def packable(self, most: int, size: int) -> list[str]:
        """The oldest finished requests: ``most``, or as many as fit a packet, but at least one.

        ``size`` is that of the rest of the packet, in bytes.
        """
        fitting: list[str] = []
        for text in islice(self.finished, max(min(most, MAX_FINISHED_SENT), 0)):
            size += len(text.encode(errors="replace"))
            if size > MAX_BYTES and fitting:
                break
            fitting.append(text)
        return fitting

    def send_report(self, tables: str, finished: list[str], end: dict[str, Any] | None) -> bool:
        """Sends one packet of a report; ``tables`` and what has ``finished`` are JSON."""
        requests = ",".join(finished)
        report = f'{{"tables":{tables},"finished":[{requests}],"end":{encode(end)}}}'
        return self.send("report", report)

    def say(self, state: str, reason: str = "") -> None:
        """Takes on a state, and says hello with it, on a new connection if there is none.

        All rows of the tables that the hello names are then to be sent.
        """
        self.state = state
        self.reason = reason
        if self.socket is None and self.process == os.getpid():
            if time.monotonic() >= self.connect_due:
                self.connect()
            if self.socket is None:
                return

        tables = self.named_tables()
        self.told = (state, tables)
        hello = {**self.hello, "state": state, "reason": reason[:200], "tables": tables}

        if self.send("hello", encode(hello)):
            every = [(table, key) for table in tables for key in self.tables[table]]
            self.unsent = dict.fromkeys(every)

    def named_tables(self) -> list[str]:
        """The tables that this plug-in sends."""
        return [*TABLES, "ending"] if self.shows_output else [*TABLES]

    def connect(self) -> None:
        """Tries to connect; if nobody listens, or no descriptor is free, a later report tries."""
        clock = time.monotonic()
        self.connect_due = clock + self.connect_pause
        self.connect_pause = min(2 * self.connect_pause, LONGEST_CONNECT_PAUSE)
        with suppress(OSError):
            kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
            connecting = socket.socket(socket.AF_UNIX, kind)
            try:
                connecting.connect(self.path)
            except OSError:
                connecting.close()
                return
            self.socket = connecting
            self.connect_due = clock + CONNECT_PAUSE  # should it break at once
            self.connect_pause = CONNECT_PAUSE

    def send(self, kind: str, message: str) -> bool:
        """Whether the socket took the packet.

        If it is full, the packet is not sent. If it is broken, or has no room for a hello, it is
        closed, too: so the sidecar notices a change of state that it was not told.
        """
        if self.socket is None:
            return False

        # A name may be no valid Unicode.
        packet = f'{{"v":{FORMAT},"{kind}":{message}}}'.encode(errors="replace")
        try:
            return self.socket.send(packet, socket.MSG_NOSIGNAL) > 0
        except OSError as error:
            if kind == "hello" or not isinstance(error, BlockingIOError):
                self.socket.close()
                self.socket = None
            return False

    def drop_connection(self) -> None:
        """Lets go of the connection in a forked process: it is the parent's."""
        if self.socket is not None:
            self.socket.close()  # this process's descriptor; the connection stays open
            self.socket = None

    def release_requests(self) -> None:
        """Lets go of vLLM's requests, and of a report in progress."""
        self.starting = {}
        self.sessions = {}
        self.requests = {}
        self.slices = None


def drop_in_children(observer: Observer) -> None:
    """Lets processes that are forked from this one let go of the observer's connection."""
    reference = weakref.ref(observer)

    def drop() -> None:
        alive = reference()
        if alive is not None:
            alive.drop_connection()

    os.register_at_fork(after_in_child=drop)


# -------------------------------------------------------------------------------------------------
# 5. What it reads of vLLM's configuration
# -------------------------------------------------------------------------------------------------

# Names in the hello, and where vLLM has them, from its speculative configuration on. They are what
# explains an acceptance rate or a speedup.
SPECULATION = {
    "draft_sample_method": "draft_sample_method",
    "local_argmax": "use_local_argmax_reduction",
    "heterogeneous_vocab": "use_heterogeneous_vocab",
    "keeps_last_block": "disable_eagle_block_drop",
    "draft_quantization": "draft_model_config.quantization",
    "draft_max_model_len": "draft_model_config.max_model_len",
    "draft_layers": "draft_model_config.hf_text_config.num_hidden_layers",
}
MAX_OPTIONS = 4096  # characters of the --speculative-config
# Options whose names end so are not sent. vLLM has none today.
SECRET = ("_key", "_secret", "_token", "password")
# The same from its whole configuration on.
CONFIGURATION = {
    "model_runner_v2": "use_v2_model_runner",
    "async_scheduling": "scheduler_config.async_scheduling",
    "prefix_caching": "cache_config.enable_prefix_caching",
    "quantization": "model_config.quantization",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "vocabulary": "model_config.hf_text_config.vocab_size",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "layers": "model_config.hf_text_config.num_hidden_layers",
    "lookahead_hash_tokens": "num_hash_lookahead_tokens",  # from 0.33
    "max_model_len": "model_config.max_model_len",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "kv_connector_role": "kv_transfer_config.kv_role",
}


def introduction(scheduler: Any, vllm_version: Any) -> dict[str, Any]:
    """The hello, without its state, reason and tables."""
    vllm = scheduler.vllm_config
    parallel = vllm.parallel_config
    names = vllm.model_config.served_model_name
    if isinstance(names, (list, tuple)):
        names = names[0]
    # Before 0.14.1 there is only the rank, which is 0 in every data-parallel engine of a dense
    # model.
    rank = getattr(parallel, "data_parallel_rank", 0)

    configuration = {name: setting(vllm, path) for name, path in CONFIGURATION.items()}
    # From 0.32 the scheduler says whether EAGLE and its like drop the last block of a prefix-cache
    # hit. Before, they always do.
    drops = setting(scheduler, "use_eagle_block_drop")
    configuration["drops_cache_block"] = setting(scheduler, "use_eagle") if drops is None else drops
    configuration["block_size"] = cache_block(scheduler)
    return {
        "plugin": VERSION,
        "vllm": text(vllm_version),
        "model": names if names is None else str(names)[:1024],
        "engine": getattr(parallel, "data_parallel_index", rank) or 0,
        "start": os.urandom(8).hex(),
        "started": time.time(),
        "speculation": speculation(vllm.speculative_config),
        "configuration": configuration,
    }


def cache_block(scheduler: Any) -> int | None:
    """Tokens in a block of what drops blocks of a prefix-cache hit.

    0 if the cache has blocks of several sizes and it is not known which; None if it has no groups.
    """
    with suppress(Exception):
        coordinator = scheduler.kv_cache_manager.coordinator
        managers = coordinator.single_type_managers
        sizes = {manager.block_size for manager in managers}
        # From 0.33, and from 0.20. Before, each group drops a block of what the last has left.
        dropping = getattr(coordinator, "drop_eagle_group_ids", None)
        if dropping is None:
            dropping = getattr(coordinator, "eagle_group_ids", None)
        if dropping:
            sizes = {max(managers[group].block_size for group in dropping)}
        return sizes.pop() if len(sizes) == 1 else 0
    return None


def speculation(speculative: Any) -> dict[str, Any] | None:
    """How the engine drafts, after vLLM's own validation; None if it does not."""
    if not speculative:
        return None

    schedule = getattr(speculative, "num_speculative_tokens_per_batch_size", None) or []
    draft_tokens = speculative.num_speculative_tokens or 0
    draft = getattr(speculative, "draft_model_config", None)

    architectures = None
    with suppress(Exception):  # a property may raise
        architectures = [str(name)[:256] for name in draft.architectures[:8]]

    return {
        "method": setting(speculative, "method"),
        "num_speculative_tokens": min(draft_tokens, 1024),
        "per_batch_size": bool(schedule),
        "schedule": schedule[:64],
        "adaptive_verification": bool(getattr(speculative, "enable_adaptive_verification", None)),
        "rejection_sample_method": setting(speculative, "rejection_sample_method"),
        "parallel_drafting": bool(getattr(speculative, "parallel_drafting", None)),
        "draft_architectures": architectures,
        "options": options(speculative),
        **{name: setting(speculative, path) for name, path in SPECULATION.items()},
    }


def options(speculative: Any) -> str | None:
    """The --speculative-config as JSON; None if it is unknown or too long.

    It has the plain values that differ from vLLM's defaults. Not a 0 that vLLM has filled in for an
    option that it does not need, since it takes no 0 for these.
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

        text = encode(found)
        return text if found and len(text) <= MAX_OPTIONS else None
    return None


def text(value: Any) -> str | None:
    """A version as text, which builds of one's own may give as bytes; None if it is neither."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value[:64] if isinstance(value, str) else None


def setting(source: Any, path: str) -> Any:
    """A setting of vLLM's: text, a flag or an integer from 0 on; None if it has no such setting."""
    with suppress(Exception):  # a property may raise
        for name in path.split("."):
            source = getattr(source, name)
        if isinstance(source, str):
            return source[:256]
        if isinstance(source, int) and source >= 0:
            return source
    return None
