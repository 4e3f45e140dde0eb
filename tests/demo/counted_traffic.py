"""Traffic that sums vLLM's own numbers from the replies: the truth for what the sidecar reports."""

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from sidecar.demo.traffic import Traffic, TrafficSummary


class _Numbers(msgspec.Struct):
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Metrics(msgspec.Struct):
    speculative_decoding: _Numbers | None = None


class _Reply(msgspec.Struct):
    usage: _Usage | None = None
    metrics: _Metrics | None = None


@dataclass(slots=True)
class AcceptanceSums:
    """vLLM's per-request numbers, summed over the replies that carried them."""

    requests: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class CountedSummary(TrafficSummary):
    completion_tokens: int = 0  # of replies with usage
    by_temperature: Counter = field(default_factory=Counter)  # completed requests
    acceptance: dict = field(default_factory=dict)  # AcceptanceSums by temperature


class CountedTraffic(Traffic):
    def __init__(self, options, **given):
        super().__init__(options, **given)
        self.summary = CountedSummary()

    def completed(self, temperature, reply):
        super().completed(temperature, reply)
        found = msgspec.json.decode(reply, type=_Reply)
        self.summary.by_temperature[temperature] += 1
        self.summary.completion_tokens += found.usage.completion_tokens if found.usage else 0
        numbers = found.metrics.speculative_decoding if found.metrics else None
        if numbers is not None:
            sums = self.summary.acceptance.setdefault(temperature, AcceptanceSums())
            sums.requests += 1
            sums.drafts += numbers.num_spec_steps
            sums.draft_tokens += numbers.num_draft_tokens
            sums.accepted_tokens += numbers.num_accepted_draft_tokens
