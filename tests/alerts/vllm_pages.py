"""A vLLM whose traffic follows a plan: its page at any moment, and what the plug-in in it says."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from sidecar.requests.messages import (
    Endings,
    FinishedRequest,
    Hello,
    HelloState,
    Outcome,
    PromptTotals,
    Speculation,
    TemperatureTotals,
    Tick,
    Totals,
)

EPOCH = 1_700_000_000  # Unix seconds of minute 0
STEPS = "iteration_tokens_total"  # a histogram despite its name
AT_ONCE = 4  # requests in a step
PLAIN_STEP = 0.02  # seconds, of the baseline
HUNDREDTHS = {"0": 0, "0-0.3": 20, "0.3-0.5": 50, "0.5-0.7": 70, "0.7-1": 100, "1+": 120}  # by bucket


def plan(*phases):
    """A quantity by minute: phases of (minutes, value), the last of which lasts; None: not on the page."""

    def at(minute):
        end = 0
        for minutes, value in phases:
            end += minutes
            if minute < end:
                return value
        return phases[-1][1]

    return at


def steady(value):
    return plan((0, value))


class Engine:
    """One engine's traffic: drafts a second, acceptance, requests a minute and so on, each a plan; and its totals."""

    def __init__(self):
        self.drafts = None
        self.acceptance, self.k = steady(0.8), steady(3)
        self.first_position = None  # its acceptance; without, that of every position
        self.requests, self.running, self.waiting = steady(10), steady(0), steady(0)
        self.for_capacity = None
        self.plain_tokens = steady(0)  # generated without drafts, a second
        self.speedup = None  # a plan, against steps of ``PLAIN_STEP``; without, a step takes as long as a plain one
        self.tpot = ()  # phases of (minutes, (P50, P99) in seconds)
        self.peak = None
        self.counts = {}

    def grow(self, minute, seconds):
        """Adds the traffic of the last ``seconds``, by the plans at ``minute``."""
        drafts = (self.drafts(minute) or 0) * seconds if self.drafts else 0
        k, acceptance = self.k(minute), self.acceptance(minute) or 0
        plain, requests = self.plain_tokens(minute) * seconds, self.requests(minute) / 60 * seconds
        first = self.first_position(minute) if self.first_position else acceptance
        accepted = drafts * k * acceptance
        steps = drafts + plain
        step_seconds = PLAIN_STEP * (1 + k * acceptance) / self.speedup(minute) if self.speedup else PLAIN_STEP
        for name, grown in {
            "drafts": drafts,
            "draft_tokens": drafts * k,
            "accepted_tokens": accepted,
            "first": drafts * first,
            "requests": requests,
            "tokens": drafts + accepted + plain + requests,
            "steps": steps,
            "step_seconds": steps * step_seconds,
        }.items():
            self.counts[name] = self.counts.get(name, 0.0) + grown
        if self.tpot:
            for quantile in plan(*self.tpot)(minute):
                self.counts["tpot", quantile] = self.counts.get(("tpot", quantile), 0) + 1

    def lines(self, minute, labels):
        """The page's samples."""
        counts = self.counts
        if self.drafts is not None and self.drafts(minute) is not None:
            for name in ("drafts", "draft_tokens", "accepted_tokens"):
                yield f"spec_decode_num_{name}_total", labels, counts[name]
            yield "spec_decode_num_accepted_tokens_per_pos_total", f'{labels},position="0"', counts["first"]
        yield "generation_tokens_total", labels, counts["tokens"]
        for edge in ("0.1", "+Inf"):
            yield "time_to_first_token_seconds_bucket", f'{labels},le="{edge}"', counts["requests"]
            yield "inter_token_latency_seconds_bucket", f'{labels},le="{edge}"', counts["steps"]
        yield "time_to_first_token_seconds_count", labels, counts["requests"]
        yield "time_to_first_token_seconds_sum", labels, counts["requests"] / 20
        yield "inter_token_latency_seconds_count", labels, counts["steps"]
        yield "inter_token_latency_seconds_sum", labels, counts["step_seconds"]
        yield "iteration_tokens_total_count", labels, counts["steps"] / AT_ONCE
        yield "num_requests_running", labels, self.running(minute)
        yield "num_requests_waiting", labels, self.waiting(minute)
        if self.for_capacity is not None:
            yield "num_requests_waiting_by_reason", f'{labels},reason="capacity"', self.for_capacity(minute)
        if self.peak is not None:
            yield "kv_cache_usage_perc", labels, self.peak(minute)
        if self.tpot:
            yield from self._tpot(labels)

    def _tpot(self, labels):
        """A histogram whose quantiles are exactly the plan's, by edges at these."""
        edges = sorted({quantile for _, pair in self.tpot for quantile in pair})
        halves = {pair[0] for _, pair in self.tpot}
        weights = [(50 if edge in halves else 49) * self.counts.get(("tpot", edge), 0) for edge in edges]
        total = sum(self.counts.get(("tpot", edge), 0) for edge in halves) * 100
        for edge, count in zip(edges, accumulate(weights), strict=True):
            yield "request_time_per_output_token_seconds_bucket", f'{labels},le="{edge}"', count
        yield "request_time_per_output_token_seconds_bucket", f'{labels},le="+Inf"', total
        yield "request_time_per_output_token_seconds_count", labels, total
        yield "request_time_per_output_token_seconds_sum", labels, 0


@dataclass
class Temperature:
    """One temperature's traffic: drafts a second and acceptance, each a plan; requests a minute; and its totals."""

    drafts: Callable
    acceptance: Callable
    requests: float
    counts: list = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])  # requests, drafts, draft and accepted tokens

    def grow(self, minute, seconds, k):
        drafts = self.drafts(minute) * seconds
        grown = (self.requests / 60 * seconds, drafts, drafts * k, drafts * k * self.acceptance(minute))
        self.counts = [before + more for before, more in zip(self.counts, grown, strict=True)]

    def row(self, hundredths):
        requests, drafts, draft_tokens, accepted = (round(count) for count in self.counts)
        return TemperatureTotals(
            hundredths, Endings(requests, 0, 0, 0), drafts, draft_tokens, accepted, (draft_tokens,), (accepted,)
        )


class Vllm:
    """One vLLM with its engines and, if ``temperatures`` has any, the plug-in in its first one."""

    def __init__(self, model):
        self.model = model
        self.engines = {}
        self.temperatures = {}
        self.speculation = None
        self.plugin_state = HelloState.OBSERVING
        self.rates = None  # a plan of single requests' acceptance
        self.paces = {}  # by temperature, a plan of plain time per token / actual of each of ten requests a poll
        self.long_prompts = None  # their acceptance
        self.lives = 0
        self.restart()

    @property
    def has_plugin(self):
        return bool(self.temperatures or self.speculation or self.rates)

    def engine(self, name="0"):
        return self.engines.setdefault(name, Engine())

    def drafts_of_all(self, minute):
        """What all temperatures draft together."""
        return sum(one.drafts(minute) for one in self.temperatures.values())

    def acceptance_of_all(self, minute):
        accepted = sum(one.drafts(minute) * one.acceptance(minute) for one in self.temperatures.values())
        return accepted / self.drafts_of_all(minute)

    def restart(self):
        """Another process: everything begins at 0."""
        self.lives += 1
        for engine in self.engines.values():
            engine.counts.clear()
        for temperature in self.temperatures.values():
            temperature.counts = [0.0] * 4

    def grow(self, minute, seconds):
        for engine in self.engines.values():
            engine.grow(minute, seconds)
        for temperature in self.temperatures.values():
            temperature.grow(minute, seconds, self.engine().k(minute))

    def page(self, minute):
        """The text of ``/metrics``."""
        found = {}
        for name, engine in self.engines.items():
            for metric, labels, value in engine.lines(minute, f'engine="{name}",model_name="{self.model}"'):
                family = metric
                for suffix in ("_bucket", "_count", "_sum"):
                    family = family.removesuffix(suffix)
                found.setdefault(family, []).append(f"vllm:{metric}{{{labels}}} {value!r}")
        lines = [f"process_start_time_seconds {EPOCH - 60 + self.lives}"]
        for family, samples in found.items():
            kind = "histogram" if family.endswith("_seconds") or family == STEPS else "gauge"
            kind = "counter" if family.endswith("_total") and family != STEPS else kind
            lines += [f"# TYPE vllm:{family} {kind}", *samples]
        return ("# TYPE process_start_time_seconds gauge\n" + "\n".join(lines) + "\n").encode()

    def tell(self, sink, at, minute, seconds):
        """Sends the plug-in's messages of the last ``seconds`` to ``sink``."""
        connection = self.lives
        sink.closed(connection - 1)  # an earlier life's
        sink.hello(connection, self._hello())
        if self.plugin_state is not HelloState.OBSERVING:
            return
        drafted = [round(self.engine().counts[name]) for name in ("drafts", "draft_tokens", "accepted_tokens")]
        rows = tuple(one.row(HUNDREDTHS[label]) for label, one in self.temperatures.items())
        if not rows:
            rows = (TemperatureTotals(0, Endings(0, 0, 0, 0), *drafted, (drafted[1],), (drafted[2],)),)
        totals = Totals(*(sum(row[index] for row in rows) for index in (2, 3, 4)))
        prompts = tuple(PromptTotals(*row) for row in self._prompts(totals))
        sink.tick(connection, Tick(at=at, lost=0, total=totals, temperature=rows, prompt=prompts))
        if self.rates is not None and (rate := self.rates(minute)) is not None:
            for _ in range(round(self.engine().requests(minute) * seconds / 60)):
                sink.finished(connection, _request(0, rate, at, 1.0))
        for label, pace in self.paces.items() if minute > 2 else ():
            for _ in range(10):
                sink.finished(connection, _request(HUNDREDTHS[label], 0.5, at, pace(minute)))

    def _prompts(self, totals):
        """Rows by prompt length: short ones, and if they accept differently, as many long ones."""
        if self.long_prompts is None:
            return [(8, 0, *totals)]
        half = (totals.drafts // 2, totals.draft_tokens // 2, round(totals.draft_tokens // 2 * self.long_prompts))
        rest = (whole - part for whole, part in zip(totals, half, strict=True))
        return [(8, 0, *rest), (13, 0, *half)]

    def _hello(self):
        return Hello(
            plugin="1",
            vllm="0.32.0",
            model=self.model,
            engine=0,
            start=f"life-{self.lives}",
            started=EPOCH - 60 + self.lives,
            state=self.plugin_state,
            reason="" if self.plugin_state is HelloState.OBSERVING else "as the scene wants",
            speculation=self.speculation or Speculation(method="eagle3", num_speculative_tokens=3),
        )


def _request(hundredths, rate, at, pace):
    """A request that decoded 200 tokens until some seconds ago."""
    begun = at - 20
    return FinishedRequest(
        temperature=hundredths, drafts=100, draft_tokens=100, accepted_tokens=round(100 * rate), lengths=(),
        prompt_tokens=10, cached_tokens=None, output_tokens=201, arrival=begun - 1, first_token=begun,
        last_token=begun + 200 * PLAIN_STEP / pace, outcome=Outcome.STOPPED,
    )  # fmt: skip
