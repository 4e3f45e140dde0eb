"""A vLLM whose traffic follows a plan.

It has its page at any moment, and the messages of the plug-in in it.
"""

from collections import Counter
from itertools import cycle

from sidecar.requests.keys import CellKey
from sidecar.requests.messages import (
    Configuration,
    FinishedRequest,
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    Speculation,
    StepKey,
    StepTally,
)
from sidecar.requests.tally import NO_REQUESTS, Outcome, Tally
from tests.cells import DEPTH, NOTHING, added, whole_drafts

EPOCH = 1_700_000_000  # Unix seconds of minute 0
AT_ONCE = 4  # requests in a step
REQUESTS = 60  # a minute, where a scene wants no other number: a verdict is soon certain
TOLD = 10  # a minute without drafts, and of each of which the plug-in tells: it has 33 drafts
PLAIN_STEP = 0.02  # seconds, of the baseline
# Of a request, all found in the cache: so many that the context hardly depends on the output.
PROMPT_TOKENS = 100_000
# A temperature by bucket.
HUNDREDTHS = {"0": 0, "0-0.3": 20, "0.3-0.5": 50, "0.5-0.7": 70, "0.7-1": 100, "1+": 120}
RUNNING, WAITING = "num_requests_running", "num_requests_waiting"
COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


def plan(*phases):
    """A quantity by minute, from phases of (minutes, value), the last of which lasts.

    Where the value is None, the quantity is not on the page.
    """

    def at(minute):
        end = 0
        for minutes, value in phases:
            end += minutes
            if minute < end:
                return value
        return phases[-1][1]

    return at


def planned(value):
    """A plan as it is; of anything else, that it stays so."""
    return value if callable(value) else plan((0, value))


def after(minutes, before, later):
    """A quantity that changes once."""
    return plan((minutes, before), (0, later))


class Engine:
    """An engine's or a temperature's traffic, and its totals.

    Drafts a second, acceptance and so on are plans.
    """

    def __init__(self):
        self.drafts = None
        self.acceptance = planned(0.8)
        self.first = planned(0.8)  # of the first position
        self.k = planned(3)
        self.requests = planned(TOLD)
        # By name on the page, without ``vllm:``, and further labels: plans of a gauge's value, and
        # of how much a counter grows a minute.
        self.gauges = {(name, ()): planned(0) for name in (RUNNING, WAITING)}
        self.counters = {}
        self.plain_tokens = planned(0)  # generated without drafts, a second
        self.step = PLAIN_STEP  # seconds of a step
        self.prompt_tokens = PROMPT_TOKENS
        self.at_once = planned(AT_ONCE)  # requests in a step
        self.speedup = None  # against steps of ``PLAIN_STEP``, in place of how long a step takes
        self.has_baseline = False  # by which the speedup is measured
        self.tpot = ()  # phases of (minutes, (P50, P99) in seconds)
        self.tpot_edges = ()  # of its buckets; none: a narrow one for each quantile
        self.counts = Counter()

    def grow(self, minute, seconds):
        """Adds the traffic of the last ``seconds``, by the plans at ``minute``."""
        drafts = (self.drafts(minute) or 0) * seconds if self.drafts else 0
        k, acceptance = self.k(minute), self.acceptance(minute) or 0
        plain, requests = self.plain_tokens(minute) * seconds, self.requests(minute) / 60 * seconds
        accepted, steps = drafts * k * acceptance, drafts + plain

        tokens = drafts + accepted + plain + requests
        step_seconds = self.step
        if self.speedup:
            step_seconds = PLAIN_STEP * (1 + k * acceptance) / self.speedup(minute)
        if self.speedup and self.has_baseline and steps:
            # A request's first token, the only one of its step, counts as well.
            step_seconds = PLAIN_STEP * tokens / (steps + requests) / self.speedup(minute)

        engine_steps = (steps + requests) / self.at_once(minute)
        self.counts.update(
            drafts=drafts, draft_tokens=drafts * k, accepted_tokens=accepted,
            first=drafts * (self.first(minute) or 0),
            requests=requests, tokens=tokens, steps=steps,
            step_seconds=steps * step_seconds,
            engine_steps=engine_steps, engine_seconds=engine_steps * step_seconds,
        )  # fmt: skip
        for key, a_minute in self.counters.items():
            self.counts[key] += a_minute(minute) / 60 * seconds
        if self.tpot and seconds:
            self.counts.update(
                {("tpot", quantile): requests / 100 for quantile in plan(*self.tpot)(minute)}
            )

    @property
    def tally(self):
        """What a plug-in has counted of its steps."""
        counts = self.counts
        return StepTally(
            steps=counts["engine_steps"],
            seconds=counts["engine_seconds"],
            decodes=counts["steps"],
            request_seconds=counts["step_seconds"],
            tokens=counts["tokens"] - counts["requests"],
            context_tokens=self.prompt_tokens * counts["steps"],
        )

    def lines(self, minute, labels):
        """The page's samples."""
        counts = self.counts
        if self.drafts is not None and self.drafts(minute) is not None:
            for name in COUNTS:
                yield f"spec_decode_num_{name}_total", labels, counts[name]
            yield (
                "spec_decode_num_accepted_tokens_per_pos_total",
                f'{labels},position="0"',
                counts["first"],
            )
        yield "generation_tokens_total", labels, counts["tokens"]
        for name in ("prompt_tokens_total", "prefix_cache_hits_total"):
            yield name, labels, self.prompt_tokens * counts["requests"]
        for name, count, total in (
            ("time_to_first_token", counts["requests"], counts["requests"] / 20),
            ("inter_token_latency", counts["steps"], counts["step_seconds"]),
        ):
            for edge in ("0.1", "+Inf"):
                yield f"{name}_seconds_bucket", f'{labels},le="{edge}"', count
            yield f"{name}_seconds_count", labels, count
            yield f"{name}_seconds_sum", labels, total
        for (name, more), value in self.gauges.items():
            if value(minute) is not None:
                yield name, _labels(labels, more), value(minute)
        for name, more in self.counters:
            yield name, _labels(labels, more), counts[name, more]
        if self.tpot:
            yield from self._tpot(labels)

    def _tpot(self, labels):
        """A histogram whose quantiles are the plan's, by edges at these.

        They are off by a hair, which absorbs rounding. Each is in a narrow bucket of its own,
        unless there are other edges, ``tpot_edges``.
        """
        quantiles = sorted({quantile for _, pair in self.tpot for quantile in pair})
        halves = {pair[0] for _, pair in self.tpot}
        weights = {
            quantile: (50.0001 if quantile in halves else 49) * self.counts["tpot", quantile]
            for quantile in quantiles
        }
        narrow = sorted(edge for one in quantiles for edge in (one * (1 - 1e-6), one))
        edges = self.tpot_edges or narrow
        below = [sum(weights[one] for one in quantiles if one <= edge) for edge in edges]
        total = sum(self.counts["tpot", quantile] for quantile in halves) * 100
        name = "request_time_per_output_token_seconds"
        for edge, count in zip((*edges, "+Inf"), (*below, total), strict=True):
            yield f"{name}_bucket", f'{labels},le="{edge}"', count
        yield f"{name}_count", labels, total
        yield f"{name}_sum", labels, 0


def _labels(labels, more):
    """A sample's labels, with more of them."""
    return ",".join([labels, *(f'{name}="{value}"' for name, value in more)])


class Vllm:
    """One vLLM with its engines.

    The plug-in is in its first one if something is planned that only a plug-in tells, and in all of
    them if how long their steps take is.
    """

    def __init__(self, model):
        self.model = model
        self.engines = {}
        self.temperatures = {}
        self.speculation = None
        self.version = "0.32.0"
        self.plugin_state = HelloState.OBSERVING
        self.accelerator = None
        # by temperature, plans of each request's acceptance and plain time per token / actual
        self.finishing = {}
        self.looping = None  # a plan of the share of these that ends in a loop
        self.is_timed = False
        self.prompts = cycle(range(10, 2010))  # tokens: replies to prompts alike count once
        self.lives = 0
        self.restart()

    @property
    def has_plugin(self):
        return bool(self.temperatures or self.speculation or self.finishing or self.is_timed)

    def engine(self, name="0"):
        return self.engines.setdefault(name, Engine())

    def drafts_of_all(self, minute):
        """What all temperatures draft together."""
        return sum(temperature.drafts(minute) for temperature in self.temperatures.values())

    def acceptance_of_all(self, minute):
        traffic = self.temperatures.values()
        accepted = sum(
            temperature.drafts(minute) * temperature.acceptance(minute) for temperature in traffic
        )
        drafts = self.drafts_of_all(minute)
        return accepted / drafts if drafts else 0

    def restart(self):
        """Another process: everything begins at 0."""
        self.lives += 1
        self.reported = Counter()  # of finished requests
        self.told = {}  # totals that the plug-in has told, by temperature
        self.cells = {}  # the numbers that have these
        self.endings = {}  # tallies of these by how they end
        for part in (*self.engines.values(), *self.temperatures.values()):
            part.counts.clear()

    def grow(self, minute, seconds):
        for engine in self.engines.values():
            engine.grow(minute, seconds)
        for temperature in self.temperatures.values():
            temperature.k = self.engine().k
            temperature.grow(minute, seconds)

    def page(self, minute):
        """The text of ``/metrics``."""
        families = {}
        for name, engine in self.engines.items():
            for metric, labels, value in engine.lines(
                minute, f'engine="{name}",model_name="{self.model}"'
            ):
                family = metric
                for suffix in ("_bucket", "_count", "_sum"):
                    family = family.removesuffix(suffix)
                families.setdefault(family, []).append(f"vllm:{metric}{{{labels}}} {value!r}")
        lines = [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self._started}",
        ]
        for family, samples in families.items():
            kind = "histogram" if family.endswith("_seconds") else "gauge"
            kind = "counter" if family.endswith("_total") else kind
            lines += [f"# TYPE vllm:{family} {kind}", *samples]
        return ("\n".join(lines) + "\n").encode()

    @property
    def _started(self):
        return EPOCH - 60 + self.lives

    def leave(self, sink):
        """The earlier life's plug-ins are gone, and this one has none."""
        for place in range(len(self.engines)):
            sink(100 * (self.lives - 1) + place, None)

    def report_to(self, sink, at, minute, seconds):
        """Sends the plug-ins' messages of the last ``seconds`` to ``sink``."""
        names = [*self.engines] if self.is_timed else [*self.engines][:1]
        for place, name in enumerate(names or ["0"]):
            connection = 100 * self.lives + place
            sink(connection - 100, None)  # an earlier life's
            sink(connection, self._hello(name))
            if self.plugin_state is HelloState.OBSERVING:
                finished = () if place else self._finished(at, minute, seconds)
                sink(connection, self._report(name, at, tuple(finished), is_first=not place))

    def _report(self, name, at, finished, *, is_first):
        engine = self.engine(name)
        split = {
            HUNDREDTHS[label]: temperature.counts
            for label, temperature in self.temperatures.items()
        }
        alone = engine.counts if self.finishing else {**engine.counts, "requests": 0}
        for key, counts in (split if split and is_first else {0: alone}).items():
            self._tell((name, key), counts)

        total = sum((Tally(**told) for told in self.told.values()), NO_REQUESTS)
        reported = tuple(request for request in finished if self._has_drafted(request, total))
        for request in reported if self.looping else ():
            known = self.endings.get(request.ending, NO_REQUESTS)
            self.endings[request.ending] = known + _ended(request)

        counts = engine.counts
        end = ReportEnd(
            at=at,
            steps=round(counts["engine_steps"]),
            generation_tokens=round(counts["tokens"]),
            running=0,
            waiting=0,
            lost=0,
            endings=dict(self.endings) if is_first else {},
        )
        cells = tuple(
            (CellKey(key, 0, 8, None), cell) for (of, key), cell in self.cells.items() if of == name
        )
        steps = ((StepKey(AT_ONCE, 9, is_mixed=False), engine.tally),) if self.is_timed else ()
        return ReportPart(cells=cells, steps=steps, finished=reported, end=end)

    def _finished(self, at, minute, seconds):
        """The requests that finished in the last ``seconds``."""
        for label, (rate, pace) in self.finishing.items() if minute > 2 else ():
            if rate(minute) is None:
                continue
            count = round(min(self.engine().requests(minute), TOLD) * seconds / 60)
            for ending in self._ends(minute, count):
                yield _request(
                    HUNDREDTHS[label],
                    rate(minute),
                    at,
                    pace=pace(minute),
                    ending=ending,
                    prompt_tokens=next(self.prompts),
                )

    def _tell(self, key, counts):
        """Adds what has been counted since the last report to a temperature's cell of an engine.

        The totals are rounded, and consistent nevertheless.
        """
        told = self.told.setdefault(key, dict.fromkeys(("stopped", *COUNTS), 0))
        stopped, drafts, draft_tokens, accepted = (
            max(round(counts["requests" if name == "stopped" else name]) - told[name], 0)
            for name in told
        )
        draft_tokens = min(draft_tokens, DEPTH * drafts)
        grown = (stopped, drafts, draft_tokens, min(accepted, draft_tokens))
        self.cells[key] = added(self.cells.get(key, NOTHING), whole_drafts(*grown))
        for name, number in zip(told, grown, strict=True):
            told[name] += number

    def _ends(self, minute, count):
        """How ``count`` requests end; None where the plug-in does not tell."""
        if self.looping is None:
            return [None] * count
        loops = round(self.looping(minute) * count)
        return ["loop"] * loops + ["normal"] * (count - loops)

    def _has_drafted(self, request, total):
        """Whether the totals, without what has been reported of others, have so much.

        If so, they then have so much less.
        """
        reported = self.reported + Counter(
            stopped=1, **{name: getattr(request, name) for name in COUNTS}
        )
        fits = all(count <= getattr(total, name) for name, count in reported.items())
        self.reported = reported if fits else self.reported
        return fits

    def _hello(self, name):
        default = Speculation(method="eagle3", num_speculative_tokens=3)
        drafts = self.engine(name).drafts is not None or self.temperatures
        return Hello(
            plugin="1", vllm=self.version, model=self.model, engine=int(name),
            start=f"life-{self.lives}-{name}", started=self._started, state=self.plugin_state,
            reason="" if self.plugin_state is HelloState.OBSERVING else "as the scene wants",
            speculation=self.speculation or (default if drafts else None),
            configuration=Configuration(accelerator=self.accelerator),
        )  # fmt: skip


def _ended(request):
    return Tally(stopped=1, **{name: getattr(request, name) for name in COUNTS})


def _request(hundredths, rate, at, *, pace, ending, prompt_tokens):
    """A request that decoded 200 tokens until some seconds ago."""
    begun = at - 20
    return FinishedRequest(
        temperature=hundredths, drafts=33, draft_tokens=100, accepted_tokens=round(100 * rate),
        prompt_tokens=prompt_tokens, output_tokens=201, arrival=begun - 1, first_token=begun,
        last_token=begun + 200 * PLAIN_STEP / pace, outcome=Outcome.STOPPED,
        ending=ending,
    )  # fmt: skip
