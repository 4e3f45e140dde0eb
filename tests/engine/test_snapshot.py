"""From layouts to engines: keys, processes, joins, and what contradicts itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.snapshot import SnapshotReader
from sidecar.errors import NoVllmMetrics, PageError
from tests.engine.engine_tools import RUNNING, M, only, page, page_reader, snapshot, ttft


@pytest.mark.parametrize(
    "counts", [(3, 2, 4), (3, 4, 2), (-1, 2, 3), ("NaN", 2, 3), (1, "NaN", 3), (1, 2, "NaN"), (1, 2, "+Inf")]
)
def test_contradictory_histograms_are_dropped_and_counted(counts):
    contradictory = page(RUNNING, *ttft(*counts, labels=M + ',engine="0"'))
    assert (contradictory.engines[0].histograms, contradictory.malformed) == ({}, 1)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "1.7e308"])
def test_impossible_values_are_absent(value):
    lines = [
        f"vllm:generation_tokens_total{{{M}}} {value}",
        f"vllm:kv_cache_usage_perc{{{M}}} {value}",
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{M},position="0"}} {value}',
        f"vllm:num_requests_running{{{M}}} 1",
    ]
    engine = only(*lines)
    assert (engine.counters, engine.accepted_per_position) == ({}, ())
    assert engine.gauges == {Gauge.REQUESTS_RUNNING: 1.0}


@pytest.mark.parametrize(("value", "gauges"), [("1", {Gauge.KV_CACHE_USAGE: 1.0}), ("40", {})])
def test_a_ratio_over_one_is_absent(value, gauges):
    assert only(f"vllm:kv_cache_usage_perc{{{M}}} {value}").gauges == gauges


@pytest.mark.parametrize("values", [("1e308", "1e308"), ("+Inf", "-Inf"), ("NaN", "1"), ("+Inf", "1")])
def test_impossible_sums_over_processes_are_absent(values):
    lines = [f'vllm:generation_tokens_total{{{M},pid="{pid}"}} {value}' for pid, value in enumerate(values)]
    assert only(*lines).counters == {}


START = "process_start_time_seconds"


@pytest.mark.parametrize(
    ("lines", "start"),
    [
        ([], None),
        ([f"{START} 1.5e9"], 1.5e9),
        ([f'{START}{{pid="1"}} 1', f'{START}{{pid="2"}} 2'], None),
        ([f"{START} NaN"], None),  # it differs from itself, and would look like a restart at every poll
        ([f"{START} +Inf"], None),
    ],
)
def test_the_process_start_is_known_if_a_page_has_one_that_is_a_time(lines, start):
    assert page(RUNNING, *lines).process_start == start


def test_a_version_from_the_future_keeps_what_it_still_has(recorded):
    """Families that went, and a label that came, cost themselves and nothing else."""
    body = recorded("vllm-0.33.0.prom").replace(b'engine="0"', b'engine="0",cell="x"')
    gone = (b"vllm:kv_cache_usage_perc", b"vllm:request_queue_time_seconds", b"vllm:num_preemptions_total")
    body = b"".join(line for line in body.splitlines(keepends=True) if not line.startswith(gone))
    (before,) = snapshot(recorded("vllm-0.33.0.prom")).engines
    (after,) = snapshot(body).engines
    assert after.key == before.key
    assert before.counters.items() - after.counters.items() == {(Counter.PREEMPTIONS, 2.0)}
    assert set(before.gauges) - set(after.gauges) == {Gauge.KV_CACHE_USAGE}
    assert set(before.histograms) - set(after.histograms) == {Phase.QUEUE}


def test_names_of_other_programs_are_not_vllms():
    with pytest.raises(NoVllmMetrics):
        page(
            "# TYPE up gauge",
            'sglang:num_requests_running{model_name="m"} 1',
            'myvllm:num_requests_running{model_name="m"} 1',
        )


_LABEL_VALUES = st.sampled_from(["0", "1", "-1", "x", "", "NaN", "+Inf", "0.1", "1e400", "\u0663"])
_SAMPLE_VALUES = st.sampled_from(["0", "1", "2.5", "-3", "NaN", "+Inf", "-Inf", "1e308", "5e-324"])
_NAMES = st.sampled_from(
    [
        "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total", "vllm:time_to_first_token_seconds_bucket",
        "vllm:kv_cache_usage_perc", "vllm:cache_config_info", "vllm:num_requests_running", START,
    ]
)  # fmt: skip
_LABELS = st.dictionaries(
    st.sampled_from(["model_name", "engine", "position", "le", "pid", "num_gpu_blocks", "block_size"]), _LABEL_VALUES
)


@given(st.lists(st.tuples(_NAMES, _LABELS, _SAMPLE_VALUES), max_size=25))
@settings(max_examples=400)
def test_whatever_labels_and_values_a_page_has_only_page_errors_are_raised(samples):
    lines = [
        name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "} " + value
        for name, labels, value in samples
    ]
    body = "".join(f"{line}\n" for line in lines).encode()
    reader, snapshots = page_reader(), SnapshotReader()
    for _ in range(2):
        try:
            read = snapshots.read(reader.read(body))
        except PageError:
            continue
        for engine in read.engines:
            numbers = [*engine.counters.values(), *engine.gauges.values(), *engine.accepted_per_position]
            numbers += [count for histogram in engine.histograms.values() for count in histogram.counts]
            assert all(0 <= number < float("inf") for number in numbers)
            for histogram in engine.histograms.values():
                assert list(histogram.edges) == sorted(set(histogram.edges))
                assert list(histogram.counts) == sorted(histogram.counts)
