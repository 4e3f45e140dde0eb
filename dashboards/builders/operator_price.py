"""What speculation takes besides the time per token, and what the baseline measured without it."""

from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import COUNT, SECONDS, SHARE, TOKENS_PER_SECOND, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import least, rate, series, worst

_TTFT: Final = 'phase="ttft"'


def price() -> Section:
    """Prefix-cache hits, time to the first token, room and throughput.

    With other traffic than the baseline's, they differ for that alone.
    """
    panels = beside(8, (_hits(), 6), (_first_token(), 6), (_room(), 6), (_throughput(), 6))
    return Section("What does it cost besides time?", [panels], collapsed=True)


def _plain(expression: str) -> Query:
    return Query(expression, "without speculation, by the baseline", Style.NOTICE)


def _hits() -> timeseries.Panel:
    return over_time(
        "Prefix-cache hits, lowest engine",
        "Share of the prompt tokens looked up that were found in the prefix cache.",
        "Some drafters make vLLM drop the last block of each hit. Try disable_eagle_block_drop"
        " where this vLLM has it, and compare: docs/why.md, prefix_cache.",
        [
            Query(least("", series("prefix_cache_hit_ratio")), "now"),
            _plain(least("", series("baseline_prefix_cache_hit_ratio"))),
        ],
        SHARE,
        high=1,
    )


def _first_token() -> timeseries.Panel:
    now = {
        name: worst("", series("engine_latency_seconds", _TTFT, f'quantile="{share}"'))
        for name, share in (("P50", "0.5"), ("P99", "0.99"))
    }

    return over_time(
        "Time to first token, worst engine",
        "P50 and P99 over the sliding window, with queueing and prompts in them; the baseline's"
        " P50.",
        "Only `specdec-sidecar compare` says what speculation adds: it sends the same prompts"
        " twice.",
        [
            *(Query(expression, name) for name, expression in now.items()),
            _plain(worst("", series("latency_baseline_seconds", _TTFT, 'quantile="0.5"'))),
        ],
        SECONDS,
    )


def _room() -> timeseries.Panel:
    return over_time(
        "KV-cache capacity in tokens, smallest pod",
        "How many tokens fit in the KV cache; the draft's weights and its own cache take their"
        " share first.",
        "If requests wait or are preempted for it: docs/why.md, room.",
        [
            Query(f"min(sum without (engine) ({series('kv_cache_capacity_tokens')}))", "now"),
            _plain(least("", series("baseline_kv_cache_capacity_tokens"))),
        ],
        COUNT,
    )


def _throughput() -> timeseries.Panel:
    return over_time(
        "Generated tokens per second, busiest engine",
        "The baseline's is at its highest load.",
        "Compare at full load only: with few requests, the requests set the pace.",
        [
            Query(worst("", rate("generation_tokens_total")), "now"),
            _plain(worst("", series("baseline_tokens_per_second"))),
        ],
        TOKENS_PER_SECOND,
    )
