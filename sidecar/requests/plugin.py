"""Counts, inside vLLM's scheduler, what each request drafts and accepts, and reports it to the
sidecar in the same pod.

vLLM loads this file as a plug-in (entry point ``specdec`` of ``vllm.general_plugins``) and calls
``register()``, which wraps four methods of vLLM's ``Scheduler``: the constructor, to say hello to
the sidecar; ``make_spec_decoding_stats``, called for each request and step with draft tokens
(before 0.14 it is not told which request, so the same numbers are taken from the arguments of
``update_from_output``); ``update_from_output``, called once per step; ``_free_request``.

Each wrapper calls vLLM's own method once with the same arguments, returns its result, and lets its
exceptions through. All else is inside ``try``: the first error disables the plug-in for good, with
one line in the log. It starts no thread, waits for nothing, writes no file, reads nothing from its
socket, changes nothing in a request but its own attribute ``_specdec``, and keeps a bounded amount.
No text, token or id of a request leaves the process. A subclass is not wrapped: if it has such
methods of its own, nothing is reported until they are seen to call vLLM's.
"""

import dataclasses
import functools
import inspect
import json
import logging
import os
import socket
import sys
import time
from collections import deque, namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate, chain, islice
from math import ceil
from operator import add, sub
from typing import Any

VERSION = "0.1.0"  # of the sidecar that wrote this file
SOCKET = os.environ.get("SPECDEC_PLUGIN__SOCKET") or "/run/specdec/plugin.sock"
PERIOD = 1.0  # seconds between reports while there is traffic
SLICE, PACKET = (
    20e-6,
    15e-6,
)  # seconds: what a report may take of one step, and the least that a packet takes
# finished requests kept while the sidecar is away; the oldest are dropped and counted as lost
MAX_FINISHED = 4096
MAX_KEYS, MAX_POSITIONS = (
    256,
    32,
)  # per table: further keys share the row "other", further positions the last one
MAX_FINISHED_SENT, MAX_ROWS_SENT = 32, 4  # per packet, which must stay below 65,536 bytes

# The methods, each with the parameters that it may have, by position or name; if any differs, none
# is wrapped.
NAMELESS = "self spec_decoding_stats num_draft_tokens num_accepted_tokens"  # before 0.14
KNOWN = {
    "make_spec_decoding_stats": (f"{NAMELESS} num_invalid_spec_tokens request_id", NAMELESS),
    "update_from_output": ("self scheduler_output model_runner_output",),
    "_free_request": ("self request delay_free_blocks", "self request"),
}
WITH_DEFAULTS = (
    *functools.WRAPPER_ASSIGNMENTS,
    "__defaults__",
)  # a call may omit what has a default
OUTCOMES = {"STOPPED": "stopped", "REPETITION": "repetition", "LENGTH_CAPPED": "length", "IGNORED": "length",
            "ABORTED": "aborted"}  # any other status: "error"  # fmt: skip
# Sampling parameters that vLLM from 0.14 rejects while it speculates, and the values that switch
# them off.
PARAMETERS = {"min_p": [0], "logit_bias": [None, {}]}
# What explains an acceptance rate or a speedup: names in the hello, and where vLLM has them.
SPECULATION = {
    "draft_sample_method": "draft_sample_method", "local_argmax": "use_local_argmax_reduction",
    "heterogeneous_vocab": "use_heterogeneous_vocab", "keeps_last_block": "disable_eagle_block_drop",
    "draft_quantization": "draft_model_config.quantization", "draft_max_model_len": "draft_model_config.max_model_len",
    "draft_layers": "draft_model_config.hf_text_config.num_hidden_layers",
}  # fmt: skip
CONFIGURATION = {
    "model_runner_v2": "use_v2_model_runner", "async_scheduling": "scheduler_config.async_scheduling",
    "prefix_caching": "cache_config.enable_prefix_caching", "quantization": "model_config.quantization",
    "max_num_seqs": "scheduler_config.max_num_seqs", "vocabulary": "model_config.hf_text_config.vocab_size",
    "data_parallel_size": "parallel_config.data_parallel_size", "block_size": "cache_config.block_size",
    "layers": "model_config.hf_text_config.num_hidden_layers",
}  # fmt: skip
MAX_OPTIONS = 4096  # characters of the --speculative-config
log = logging.getLogger("vllm.specdec_plugin")  # logs where and how vLLM logs its own lines
encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Positions(tuple):
    """How many drafts had, or accepted, a token at position 0, 1, …; added and subtracted position by position."""

    def __add__(self, growth: "Positions") -> "Positions":
        return Positions(map(add, self, growth))

    def __sub__(self, before: "Positions") -> "Positions":
        return Positions(map(sub, self, before))


# Counts are replaced, never changed. Finished requests by outcome, and what was drafted and
# accepted:
ENDS = ("stopped", "length", "repetition", "aborted", "error")
Counts = namedtuple(
    "Counts", [*ENDS, "drafts", "draft_tokens", "accepted_tokens"], defaults=[0] * 8
)
Tally = namedtuple(
    "Tally", [*Counts._fields, "drafted_at", "accepted_at"], defaults=[0] * 10
)  # also by position
# Steps, their seconds, the requests that decoded in them, the products of these two, and the tokens
# that they got:
Steps = namedtuple("Steps", "steps seconds decodes request_seconds tokens")


class RequestCounts:
    """One request's counts, kept in an attribute of vLLM's Request and freed with it."""

    def __init__(self, request: Any, depth: int) -> None:
        self.parameters, self.first_token, self.ended = request.sampling_params, 0.0, False
        self.drafts_by_length = [0] * (depth + 1)
        # The last is for drafts that came back without any token: -1 accepted for vLLM up to 0.15.
        self.drafts_by_accepted = [0] * (depth + 2)
        none = Positions([0] * min(depth, MAX_POSITIONS))
        self.counted = Tally(drafted_at=none, accepted_at=none)  # what the totals contain of it
        # Its key in each table. The temperature, at most 100, is in hundredths, rounded up.
        self.temperature = ceil(
            round(100 * min(max(0, request.sampling_params.temperature), 100), 6)
        )
        self.prompt_tokens = max(request.num_prompt_tokens - 1, 0).bit_length()
        self.output = "structured" if request.use_structured_output else "free"
        self.sampling = sampling(request.sampling_params)
        adapter = request.lora_request.lora_name[:200] if request.lora_request is not None else ""
        self.adapter = adapter.encode("utf-8", "replace").decode()

    def tally(self) -> Tally:
        """What it has drafted and accepted so far, in the terms of vLLM's counters."""
        *by_accepted, without_token = self.drafts_by_accepted
        drafted_at, accepted_at = by_position(self.drafts_by_length), by_position(by_accepted)
        accepted = max(
            sum(accepted_at) - without_token, self.counted.accepted_tokens
        )  # never falls
        drafts = sum(self.drafts_by_length)
        return Tally(*[0] * len(ENDS), drafts, sum(drafted_at), accepted, drafted_at, accepted_at)


class NotCalled(Exception):
    """The scheduler's class has its own version of the method that is named, which does not call vLLM's."""


class Observer:
    """Counts for one Scheduler, whose class may have its ``own`` methods beside vLLM's, and reports to the sidecar."""

    def __init__(self, scheduler: Any, vllm_version: Any, path: str, own: list[str]) -> None:
        self.hello, self.path = introduction(scheduler.vllm_config, vllm_version), path
        self.state, self.own, self.requests = "checking" if own else "observing", own, {}
        self.socket, self.total = None, Counts()  # None: not connected
        self.depth = scheduler.num_spec_tokens  # also the length of vLLM's own lists
        self.tables = {"temperature": {}, "prompt_tokens": {}, "output": {}, "sampling": {},
                       "adapter": {}, "steps": {}}  # fmt: skip
        self.since = {}  # when a row's key first appeared, by table and key
        self.changed = {}  # rows that have changed since the last report began, by table and key
        self.starting = {}  # requests that were scheduled and have no token yet, by id
        self.finished, self.lost = deque(maxlen=MAX_FINISHED), 0  # finished requests, as JSON
        self.now, self.length = time.time(), 0.0
        # When the last steps ended: two times with two pipeline stages, since a request is then in
        # every other step.
        self.times = deque(
            maxlen=getattr(scheduler.vllm_config.parallel_config, "pipeline_parallel_size", 1)
        )
        self.slices, self.due = None, 0.0  # the report in progress, and when the next one is due

    def before_step(self, scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> None:
        clock, self.now, times, requests = (
            time.monotonic(),
            time.time(),
            self.times,
            scheduler.requests,
        )
        self.length = clock - times[0] if len(times) == times.maxlen else 0.0
        times.append(clock)
        if self.own:
            self.requests = requests.copy()
        for new in scheduler_output.scheduled_new_reqs:
            request = requests.get(new.req_id)
            if (
                request is not None and request.sampling_params is not None
            ):  # None: a pooling request
                self.follow(request)
                if (
                    not request.num_output_tokens
                ):  # else it was preempted: model runner V2 lists it as new again
                    self.starting[new.req_id] = request
        if model_runner_output is not None:
            # Before 0.14: counts by the rule of vLLM's method, but ahead of its update, which frees
            # requests that end.
            index, sampled = (
                model_runner_output.req_id_to_index,
                model_runner_output.sampled_token_ids,
            )
            for request_id, draft in scheduler_output.scheduled_spec_decode_tokens.items():
                request = requests.get(request_id)
                if request is not None and draft:  # None: aborted while the model ran
                    self.count(
                        request,
                        len(draft),
                        len(sampled[index[request_id]]) - 1 if len(sampled) else -1,
                    )

    def count(self, request: Any, drafted: int, accepted: int) -> None:
        # Must equal vLLM's own counters, or the sidecar withholds the split; check() takes it as
        # proof of the call.
        counts = request.__dict__.get("_specdec") or self.follow(request)
        counts.drafts_by_length[drafted] += 1
        counts.drafts_by_accepted[accepted] += 1

    def after_step(self, scheduler: Any, scheduler_output: Any, result: Any) -> None:
        results = (
            result.values() if isinstance(result, dict) else [result]
        )  # a dict by client from 0.9.2
        outputs = [output for outputs in results for output in outputs.outputs]
        if self.own:
            self.check(scheduler_output.scheduled_spec_decode_tokens, outputs)
        lengths = [len(output.new_token_ids) for output in outputs]
        decodes, tokens = len(lengths) - lengths.count(0), sum(lengths)
        for request_id, request in [*self.starting.items()]:
            counts, output = request._specdec, request.num_output_tokens
            if output or counts.ended:
                del self.starting[request_id]
            if output:  # its first tokens: for this request, the step was its prefill
                counts.first_token = counts.first_token or self.now
                decodes -= 1
                tokens -= output
        if decodes > 0 and self.length:
            self.add(
                "steps",
                (decodes - 1).bit_length(),
                Steps(1, self.length, decodes, decodes * self.length, tokens),
            )
        self.go_on(scheduler)

    def check(self, drafts: dict[str, Any], outputs: list[Any]) -> None:
        """Checks, until a step with drafts and an end have shown it, that vLLM's methods are called as well."""
        for output in outputs:
            request, ended = self.requests.get(output.request_id), output.finish_reason is not None
            counts, drafted = getattr(request, "_specdec", None), drafts.get(output.request_id)
            if counts is None or not output.new_token_ids:  # None: a pooling request
                continue
            if drafted and not any(counts.drafts_by_length):
                raise NotCalled("make_spec_decoding_stats")
            if ended and not counts.ended:
                raise NotCalled("_free_request")
            if self.state == "checking" and (drafted or (ended and not self.depth)):
                self.say("observing")
            if self.state == "observing" and ended:
                self.own, self.requests = [], {}

    def follow(self, request: Any) -> RequestCounts:
        """Returns a request's counts: new ones if it is new, or was resumed with other sampling parameters."""
        counts = request.__dict__.get("_specdec")
        if counts is None or counts.parameters is not request.sampling_params:
            if counts is not None:
                self.settle(counts)
            elif self.own and request.num_output_tokens:  # it got them in no step of vLLM's
                raise NotCalled("update_from_output")
            counts = request._specdec = RequestCounts(request, self.depth)
        return counts

    def end(self, request: Any) -> None:
        counts = (
            None if request.sampling_params is None else self.follow(request)
        )  # None: a pooling request
        if counts is None or counts.ended:  # with a KV connector, it can end a second time
            return
        counts.ended = True
        outcome = OUTCOMES.get(request.status.name.replace("FINISHED_", ""), "error")
        self.settle(counts, outcome)
        self.lost += len(self.finished) == MAX_FINISHED  # the oldest is dropped
        self.finished.append(encode(finished_request(request, counts, outcome, self.now)))

    def settle(self, counts: RequestCounts, outcome: str = "") -> None:
        """Adds to the totals what a request has drafted since the last call, and with an ``outcome`` its end."""
        if not outcome and sum(counts.drafts_by_length) == counts.counted.drafts:
            return
        tally = counts.tally()
        growth, counts.counted = Tally._make(map(sub, tally, counts.counted)), tally
        if outcome:
            growth = growth._replace(**{outcome: 1})
        self.add("temperature", counts.temperature, growth)
        growth = Counts._make(growth[: len(Counts._fields)])
        for table in ("prompt_tokens", "output", "sampling", "adapter"):
            self.add(table, getattr(counts, table), growth)
        self.total = Counts._make(map(add, self.total, growth))

    def add(self, table: str, key: Any, growth: Any) -> None:
        rows = self.tables[table]
        if key not in rows and len(rows) >= MAX_KEYS:
            key = "other"
        rows[key] = self.changed[table, key] = (
            growth._make(map(add, rows[key], growth)) if key in rows else growth
        )
        self.since.setdefault((table, key), self.now)

    def go_on(self, scheduler: Any) -> None:
        """Reports for SLICE seconds if it is time; to the end if the engine is idle: its next step may be far off."""
        idle = not scheduler.running and not scheduler.get_num_unfinished_requests()
        if idle or (self.slices is None and self.times[-1] >= self.due):
            self.slices = chain(self.slices or (), self.report(scheduler.requests))
            self.due = time.monotonic() + PERIOD
        until = time.perf_counter() + SLICE
        for next_takes in self.slices or ():
            if not idle and time.perf_counter() + next_takes > until:
                return
        self.slices = None
        if (
            idle
        ):  # also in the step that vLLM runs after an abort, for the workers' finished_req_ids
            self.times.clear()

    def report(self, requests: dict[str, Any]) -> Iterator[float]:
        """Sends one cut in parts that are spread over steps; yields how long the next part may take."""
        if self.socket is None or self.state == "checking":
            self.say(self.state, self.reason)
        if self.state == "checking":
            return
        for request_id in [*requests]:
            request = requests.get(request_id)  # None: it has ended since, and was settled then
            if (
                request is not None and "_specdec" in request.__dict__
            ):  # else it waits for its first step
                self.settle(request._specdec)
            yield 0.0
        rows, self.changed, finished = (
            self.changed,
            {},
            len(self.finished) + self.lost,
        )  # the cut: rows stay
        end = {"total": self.total._asdict(), "lost": self.lost}
        while rows or finished > self.lost:
            yield PACKET
            part, left = (
                [*islice(rows, MAX_ROWS_SENT)],
                max(finished - self.lost, 0),
            )  # the oldest may be dropped
            ended = [*islice(self.finished, min(left, 0 if part else MAX_FINISHED_SENT))]
            if not self.send(
                "report", self.part(rows, part, ended, end if len(part) == len(rows) else None)
            ):
                break
            for row in part:
                del rows[row]
            for _ in ended:
                self.finished.popleft()
                finished -= 1
        self.changed = {**rows, **self.changed}  # what was not sent goes with the next report

    def part(self, rows: dict[Any, Any], keys: list[Any], finished: list[str], end: Any) -> str:
        """One packet of a report: some ``rows``, then finished requests; with the ``end`` once all rows are in."""
        part = {"end": end}
        for table, key in keys:
            counts = rows[table, key]._asdict()
            part.setdefault(table, []).append(
                {"key": key, "since": self.since[table, key], "counts": counts}
            )
        return encode(part)[:-1] + ',"finished":[%s]}' % ",".join(finished)

    def say(self, state: str, reason: str = "") -> None:
        """Sends a hello, on a new connection if there is none; the next report then has every row."""
        self.state, self.reason = state, reason
        if self.socket is None:
            with suppress(
                OSError
            ):  # no free descriptor, or nobody is listening: the next report tries again
                self.socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
                )
                self.socket.connect(self.path)
        if self.send("hello", encode({**self.hello, "state": state, "reason": reason[:200]})):
            self.changed = {(table, key): self.tables[table][key] for table, key in self.since}

    def send(self, kind: str, message: str) -> bool:
        """Returns whether the socket took the packet: False if it is full, or broken, in which case it is closed."""
        try:
            packet = f'{{"v":2,"{kind}":{message}}}'.encode(
                errors="replace"
            )  # a name may be no valid Unicode
            return self.socket is not None and self.socket.send(packet, socket.MSG_NOSIGNAL) > 0
        except OSError as error:
            if kind == "hello" or not isinstance(
                error, BlockingIOError
            ):  # what is not said is seen by the end
                self.socket.close()
                self.socket = None
            return False


def by_position(by_length: list[int]) -> Positions:
    """Turns how many had 0, 1, … tokens into how many had a token at position 0, 1, …."""
    drafts, last = [*accumulate(by_length[:0:-1])][::-1], MAX_POSITIONS - 1
    return Positions([*drafts[:last], sum(drafts[last:])] if len(drafts) > last else drafts)


def finished_request(
    request: Any, counts: RequestCounts, outcome: str, now: float
) -> dict[str, Any]:
    last_token, parameters = now if request.num_output_tokens else None, counts.parameters
    return {
        "temperature": counts.temperature, "prompt_tokens": request.num_prompt_tokens, "outcome": outcome,
        "output_tokens": request.num_output_tokens, "structured": counts.output == "structured",
        "sampling": counts.sampling, "adapter": counts.adapter or None, "drafts": counts.counted.drafts,
        "draft_tokens": counts.counted.draft_tokens, "accepted_tokens": counts.counted.accepted_tokens,
        "arrival": getattr(request, "arrival_time", None),  # from 0.9.1; by the API server's clock
        "first_token": counts.first_token or last_token, "last_token": last_token,
        "parameters": [name for name, off in PARAMETERS.items() if getattr(parameters, name, off[0]) not in off],
    }  # fmt: skip


def sampling(parameters: Any) -> str:
    """How a request's tokens are chosen; top-k, top-p and min-p shape the target's distribution, not the draft's."""
    if not parameters.temperature:
        return "greedy"
    read = functools.partial(getattr, parameters)
    if (
        read("presence_penalty", 0)
        or read("frequency_penalty", 0)
        or read("repetition_penalty", 1) != 1
    ):
        return "penalties"
    return (
        "filtered"
        if read("top_k", 0) > 0 or read("top_p", 1) < 1 or read("min_p", 0) > 0
        else "plain"
    )


def setting(source: Any, path: str) -> Any:
    """What vLLM has configured, as text, number or flag; None where this vLLM has no such setting."""
    with suppress(Exception):  # a property may raise
        for name in path.split("."):
            source = getattr(source, name)
        return source if isinstance(source, (bool, int, str)) else None


def options(speculative: Any) -> str | None:
    """The --speculative-config as JSON: what differs from vLLM's defaults; None if it is unknown.

    vLLM fills in 0 for some options that it does not need, and takes no 0 for them.
    """
    found = {}
    with suppress(Exception):
        for field in dataclasses.fields(speculative):
            value = getattr(speculative, field.name)
            default = getattr(field.default, "default", field.default)  # of pydantic's FieldInfo
            is_plain = isinstance(value, (bool, int, float, str, list))
            is_filled_in = value == 0 and default is None
            if is_plain and value != default and not is_filled_in:
                found[field.name] = value
        text = encode(found)
        return text if found and len(text) <= MAX_OPTIONS else None
    return None


def introduction(vllm: Any, vllm_version: Any) -> dict[str, Any]:
    """The hello without its state and reason."""
    names, parallel, speculative = (
        vllm.model_config.served_model_name,
        vllm.parallel_config,
        vllm.speculative_config,
    )
    # Before 0.14.1 there is only the rank, which is 0 in every data-parallel engine of a dense
    # model.
    engine = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0))
    return {
        "plugin": VERSION, "vllm": vllm_version, "model": names[0] if isinstance(names, list) else names,
        "engine": engine, "start": os.urandom(8).hex(), "started": time.time(),
        "speculation": speculative and {
            "method": speculative.method, "num_speculative_tokens": speculative.num_speculative_tokens or 0,
            "per_batch_size": bool(getattr(speculative, "num_speculative_tokens_per_batch_size", None)),
            "adaptive_verification": bool(getattr(speculative, "enable_adaptive_verification", None)),
            "rejection_sample_method": getattr(speculative, "rejection_sample_method", None),
            "parallel_drafting": bool(getattr(speculative, "parallel_drafting", None)),
            "schedule": (getattr(speculative, "num_speculative_tokens_per_batch_size", None) or [])[:64],
            **{name: setting(speculative, path) for name, path in SPECULATION.items()},
            "options": options(speculative),
        },
        "configuration": {name: setting(vllm, path) for name, path in CONFIGURATION.items()},
    }  # fmt: skip


def misfit(found: dict[str, str]) -> str:
    """Names the methods that are missing or whose parameters this file does not know; "" if there are none."""
    return ", ".join(
        f"{name}({found.get(name, 'missing')})"
        for name in KNOWN
        if found.get(name) not in KNOWN[name]
    )


def parameters(method: Any) -> str:
    """Names a method's parameters; marks with * each that cannot be given both by position and by name."""
    found = inspect.signature(method).parameters.values()
    return " ".join(
        one.name if one.kind is one.POSITIONAL_OR_KEYWORD else one.name + "*" for one in found
    )


def attempt(scheduler: Any, act: Callable[..., None], *args: Any) -> None:
    if scheduler._specdec is not None:
        try:
            act(scheduler._specdec, *args)
        except Exception as error:
            fail(scheduler, act.__name__, error)


def fail(scheduler: Any, part: str, error: Exception) -> None:
    """From now on, the wrappers only call vLLM's own methods. Omits the error's text, which may name a request."""
    observer, scheduler._specdec = scheduler._specdec, None
    with suppress(Exception):  # a log handler may raise
        state, line = "disabled", inspect.getinnerframes(error.__traceback__, 0)[-1].lineno
        reason = f"{part}: {type(error).__name__} at line {line}"
        if isinstance(error, NotCalled):
            state, reason = (
                "refused",
                f"{type(scheduler).__name__} has its own {error}, which does not call vLLM's",
            )
        log.error("specdec %s is %s, and vLLM goes on without it: %s", VERSION, state, reason)
        observer.starting, observer.requests, observer.slices = (
            {},
            {},
            None,
        )  # lets go of vLLM's requests
        observer.say(state, reason)


def install(scheduler_class: Any, vllm_version: Any = None, path: str = SOCKET) -> None:
    """Wraps the methods of vLLM's Scheduler, or of a class like it, unless they are wrapped already."""
    if "_specdec" in vars(scheduler_class):
        return
    scheduler_class._specdec = None  # an observed instance has its Observer here
    methods = {
        name: getattr(scheduler_class, name) for name in KNOWN if hasattr(scheduler_class, name)
    }
    refusal = misfit({name: parameters(method) for name, method in methods.items()})
    wrappers = {} if refusal else wrap(*(methods[name] for name in KNOWN))
    construct = scheduler_class.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        try:
            own = [
                name
                for name, wrapper in wrappers.items()
                if getattr(type(self), name) is not wrapper
            ]
            self._specdec_link = observer = Observer(self, vllm_version, path, own)
            self._specdec = None if refusal else observer
            state = "refused" if refusal else observer.state
            reason = refusal or (
                f"{type(self).__name__} has its own {' '.join(own)}" if own else ""
            )
            observer.say(state, reason)
            log.info("specdec %s: %s for %s%s", VERSION, state, path, reason and f": {reason}")
        except Exception as error:
            fail(self, "__init__", error)

    for name, wrapper in {**wrappers, "__init__": __init__}.items():
        setattr(scheduler_class, name, wrapper)


def wrap(make: Any, update: Any, free: Any) -> dict[str, Any]:
    by_id = "request_id" in inspect.signature(make).parameters  # from 0.14

    @functools.wraps(make, WITH_DEFAULTS)
    def make_spec_decoding_stats(self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens,
                                 num_invalid_spec_tokens, request_id):  # fmt: skip
        result = make(self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens,
                      num_invalid_spec_tokens, request_id)  # fmt: skip
        if self._specdec is not None:
            try:
                # Like vLLM's counters, leaves out tokens that the grammar rejected before
                # verification.
                invalid = (
                    num_invalid_spec_tokens.get(request_id, 0) if num_invalid_spec_tokens else 0
                )
                self._specdec.count(
                    self.requests[request_id], num_draft_tokens - invalid, num_accepted_tokens
                )
            except Exception as error:
                fail(self, "count", error)
        return result

    @functools.wraps(update, WITH_DEFAULTS)
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        attempt(
            self,
            Observer.before_step,
            self,
            scheduler_output,
            None if by_id else model_runner_output,
        )
        result = update(self, scheduler_output, model_runner_output)
        attempt(self, Observer.after_step, self, scheduler_output, result)
        return result

    @functools.wraps(free)
    def _free_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = free(self, request, *args, **kwargs)
        attempt(self, Observer.end, request)
        return result

    wrappers = {"update_from_output": update_from_output, "_free_request": _free_request}
    return {"make_spec_decoding_stats": make_spec_decoding_stats, **wrappers} if by_id else wrappers


def register() -> None:
    """vLLM calls this in each of its processes. It never raises, because vLLM would then not start."""
    try:
        program = getattr(sys.modules["__main__"], "__spec__", None)
        if "vllm.v1.worker.worker_base" in sys.modules and "vllm.v1.engine.core" not in sys.modules:
            return  # a worker: it has no scheduler, and importing one would take time
        if program is not None and program.name == "vllm.model_executor.models.registry":
            return  # vLLM inspects a model class in a process of its own
        import vllm
        from vllm.v1.core.sched.scheduler import Scheduler

        install(Scheduler, vllm.__version__)
    except Exception as error:
        log.error("specdec %s: cannot observe this vLLM: %r", VERSION, error)
