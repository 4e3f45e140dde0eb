"""From layouts to engines: keys, processes, joins, and what contradicts itself."""

import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import SnapshotReader
from sidecar.engine.version import VersionFamily
from sidecar.errors import NoVllmMetrics, PageError, PageTooLarge
from tests.engine.engine_tools import page_reader, snapshot, with_prefix


def page(*lines):
    return snapshot("".join(f"{line}\n" for line in lines).encode())


def only(*lines):
    (engine,) = page(*lines).engines
    return engine


M = 'model_name="m"'
BUCKETS = ("0.1", "1.0", "+Inf")


def ttft(*counts, labels=M, edges=BUCKETS):
    name = "vllm:time_to_first_token_seconds_bucket"
    return [f'{name}{{{labels},le="{edge}"}} {count}' for edge, count in zip(edges, counts, strict=True)]


def test_versions_without_an_engine_label_have_engine_0():
    assert only(f"vllm:num_requests_running{{{M}}} 1").key == EngineKey("m", "0")


def test_engines_come_in_the_order_of_their_numbers():
    lines = [f'vllm:num_requests_running{{{M},engine="{n}"}} {n}' for n in (10, 2, 0, 1)]
    assert [engine.key.engine for engine in page(*lines).engines] == ["0", "1", "2", "10"]


def test_engine_of_thousands_of_digits_is_a_name_like_any_other():
    assert only(f'vllm:num_requests_running{{{M},engine="{"9" * 5000}"}} 1').key.engine == "9" * 5000


def test_several_models_on_one_page_stay_apart():
    found = page(
        'vllm:num_requests_running{engine="0",model_name="b"} 1',
        'vllm:num_requests_running{engine="0",model_name="a"} 2',
        'vllm:generation_tokens_total{engine="0",model_name="b"} 3',
    )
    assert [(e.key.model_name, e.gauges[Gauge.REQUESTS_RUNNING]) for e in found.engines] == [("a", 2.0), ("b", 1.0)]
    assert [e.counters for e in found.engines] == [{}, {Counter.GENERATION_TOKENS: 3.0}]


def test_series_of_vllm_without_a_model_belong_to_no_engine():
    assert page("vllm:num_requests_running 1", f"vllm:num_requests_waiting{{{M}}} 2").engines[0].gauges == {
        Gauge.REQUESTS_WAITING: 2.0
    }
    with pytest.raises(NoVllmMetrics):
        page("vllm:num_requests_running 1")


def test_processes_that_count_apart_are_summed():
    lines = [f'vllm:generation_tokens_total{{{M},pid="{pid}"}} {value}' for pid, value in ((1, 10), (2, 20))]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{M},pid="{pid}",position="{position}"}} {value}'
        for pid, position, value in ((1, 1, 1), (1, 0, 2), (2, 0, 40), (2, 1, 30))
    ]
    lines += [f'vllm:num_requests_running{{{M},pid="{pid}"}} {pid}' for pid in (1, 2)]
    lines += ttft(1, 2, 3, labels=M + ',pid="1"') + ttft(10, 20, 30, labels=M + ',pid="2"')
    engine = only(*lines)
    assert engine.counters == {Counter.GENERATION_TOKENS: 30.0}
    assert engine.accepted_per_position == (42.0, 31.0)
    assert engine.gauges == {Gauge.REQUESTS_RUNNING: 3.0}
    assert engine.histograms[Phase.TTFT].counts == (11.0, 22.0, 33.0)
    assert engine.histograms[Phase.TTFT].edges == (0.1, 1.0, float("inf"))


def test_kv_usage_by_process_is_the_highest():
    lines = [f'vllm:kv_cache_usage_perc{{{M},pid="{pid}"}} {value}' for pid, value in ((1, 0.0), (2, 0.6), (3, 0.2))]
    assert only(*lines).gauges == {Gauge.KV_CACHE_USAGE: 0.6}


def test_kv_usage_shared_by_all_processes_wins_over_one_a_process():
    lines = [f'vllm:kv_cache_usage_perc{{{M},pid="1"}} 0.9', f"vllm:gpu_cache_usage_perc{{{M}}} 0.4"]
    assert only(*lines).gauges == {Gauge.KV_CACHE_USAGE: 0.4}


def config(size, engine="0", name="num_gpu_blocks"):
    return f'vllm:cache_config_info{{block_size="16",engine="{engine}",{name}="{size}"}} 1.0'


RUNNING = f'vllm:num_requests_running{{engine="0",{M}}} 1'


@pytest.mark.parametrize(
    ("lines", "capacity"),
    [
        ([config("100")], 1600),
        ([config("100").replace('engine="0",', "")], 1600),
        ([config("100", engine="1")], None),
        ([config("None")], None),
        ([config("-1")], None),
        ([config("9" * 5000)], None),
        ([config("777", name="kv_cache_size_tokens")], 777),
        ([config("None", name="kv_cache_size_tokens")], None),
        ([config("100"), config("200", engine="1")], 1600),
        # Two models' settings have nothing that tells whose they are.
        ([config("100"), config("200")], None),
        ([config("100"), config("100").replace("block_size", 'a="b",block_size')], 1600),
    ],
)
def test_kv_cache_capacity(lines, capacity):
    assert only(RUNNING, *lines).kv_cache_capacity_tokens == capacity


@pytest.mark.parametrize(
    "counts", [(3, 2, 4), (3, 4, 2), (-1, 2, 3), ("NaN", 2, 3), (1, "NaN", 3), (1, 2, "NaN"), (1, 2, "+Inf")]
)
def test_contradictory_histograms_are_dropped_and_counted(counts):
    found = page(RUNNING, *ttft(*counts, labels=M + ',engine="0"'))
    assert found.engines[0].histograms == {}
    assert found.malformed == 1


def test_histogram_without_its_last_bucket_is_absent():
    assert only(RUNNING, *ttft(1, 2, edges=("0.1", "1.0"), labels=M + ',engine="0"')).histograms == {}


@pytest.mark.parametrize("edge", ["NaN", "nan", "x", "", "1_0"])
def test_bucket_with_an_edge_that_is_no_number_is_not_one(edge):
    engine = only(*ttft(1, 7, 2, 3, edges=("0.1", edge, "1.0", "+Inf")))
    assert engine.histograms[Phase.TTFT].counts == (1.0, 2.0, 3.0)


def test_buckets_in_any_order_and_notation():
    engine = only(*ttft(5, 1, 3, 2, edges=("+Inf", "1e-1", "10", "1")))
    assert engine.histograms[Phase.TTFT].edges == (0.1, 1.0, 10.0, float("inf"))
    assert engine.histograms[Phase.TTFT].counts == (1.0, 2.0, 3.0, 5.0)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "1.7e308"])
def test_values_that_can_not_be_are_absent(value):
    lines = [
        f"vllm:generation_tokens_total{{{M}}} {value}",
        f"vllm:kv_cache_usage_perc{{{M}}} {value}",
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{M},position="0"}} {value}',
        f"vllm:num_requests_running{{{M}}} 1",
    ]
    engine = only(*lines)
    assert engine.counters == {}
    assert engine.gauges == {Gauge.REQUESTS_RUNNING: 1.0}
    assert engine.accepted_per_position == ()


def test_a_ratio_over_one_is_absent():
    assert only(f"vllm:kv_cache_usage_perc{{{M}}} 1").gauges == {Gauge.KV_CACHE_USAGE: 1.0}
    assert only(f"vllm:kv_cache_usage_perc{{{M}}} 40").gauges == {}


@pytest.mark.parametrize("values", [("1e308", "1e308"), ("+Inf", "-Inf"), ("NaN", "1"), ("+Inf", "1")])
def test_sums_over_processes_that_can_not_be_are_absent(values):
    lines = [f'vllm:generation_tokens_total{{{M},pid="{pid}"}} {value}' for pid, value in enumerate(values)]
    assert only(*lines).counters == {}


@pytest.mark.parametrize("positions", [("0", "2"), ("1", "2"), ("x",), ("-1",), ("9" * 5000,)])
def test_positions_with_a_gap_are_absent(positions):
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert only(RUNNING, *(f'{name}{{{M},engine="0",position="{p}"}} 1' for p in positions)).accepted_per_position == ()


def test_v0_counters_are_recognised_by_the_drafts_they_lack():
    tokens = f"vllm:spec_decode_num_draft_tokens_total{{{M}}} 10"
    accepted = f"vllm:spec_decode_num_accepted_tokens_total{{{M}}} 5"
    assert only(tokens, accepted).counters == {}
    assert only(tokens, accepted).traits == {Trait.OVERCOUNTED}
    engine = only(tokens, accepted, f"vllm:spec_decode_num_drafts_total{{{M}}} 3")
    assert engine.traits == frozenset()
    assert engine.counters == {Counter.DRAFTS: 3.0, Counter.DRAFT_TOKENS: 10.0, Counter.ACCEPTED_TOKENS: 5.0}


def test_process_start_is_told_where_there_is_exactly_one():
    start = "process_start_time_seconds"
    assert page(RUNNING).process_start is None
    assert page(RUNNING, f"{start} 1.5e9").process_start == 1.5e9
    assert page(RUNNING, f'{start}{{pid="1"}} 1', f'{start}{{pid="2"}} 2').process_start is None


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_process_start_that_is_no_time_is_not_told(value):
    """A NaN differs from itself, and would look like a restart at every poll."""
    assert page(RUNNING, f"process_start_time_seconds {value}").process_start is None


def test_unknown_version(recorded):
    assert page(RUNNING).version is VersionFamily.UNKNOWN
    assert page(RUNNING, "# TYPE vllm:request_success_total counter").version is not VersionFamily.UNKNOWN


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
        page('sglang:num_requests_running{model_name="m"} 1', 'myvllm:num_requests_running{model_name="m"} 1')


def test_two_prefixes_on_one_page_do_not_break_it(recorded):
    """Not seen in the wild; the sums of the two would be wrong, so it is known here what comes out."""
    body = recorded("vllm-0.33.0.prom")
    assert snapshot(body + with_prefix(body, "ray_vllm:")).engines


_LABEL_VALUES = st.sampled_from(["0", "1", "-1", "x", "", "NaN", "+Inf", "0.1", "1e400", "\u0663"])
_SAMPLE_VALUES = st.sampled_from(["0", "1", "2.5", "-3", "NaN", "+Inf", "-Inf", "1e308", "5e-324"])
_NAMES = st.sampled_from(
    [
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "vllm:num_requests_running",
        "process_start_time_seconds",
    ]
)
_LABELS = st.dictionaries(
    st.sampled_from(["model_name", "engine", "position", "le", "pid", "num_gpu_blocks", "block_size"]), _LABEL_VALUES
)


@given(st.lists(st.tuples(_NAMES, _LABELS, _SAMPLE_VALUES), max_size=25))
@settings(max_examples=400, deadline=None)
def test_whatever_labels_and_values_a_page_has_only_page_errors_are_raised(samples):
    lines = [
        name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "} " + value
        for name, labels, value in samples
    ]
    body = "".join(f"{line}\n" for line in lines).encode()
    reader, snapshots = page_reader(), SnapshotReader()
    for _ in range(2):
        try:
            found = snapshots.read(reader.read(body))
        except PageError:
            continue
        for engine in found.engines:
            numbers = [*engine.counters.values(), *engine.gauges.values(), *engine.accepted_per_position]
            numbers += [count for histogram in engine.histograms.values() for count in histogram.counts]
            assert all(0 <= number < float("inf") for number in numbers)
            for histogram in engine.histograms.values():
                assert list(histogram.edges) == sorted(set(histogram.edges))
                assert list(histogram.counts) == sorted(histogram.counts)


def test_where_a_page_has_the_old_name_too_the_new_one_is_read():
    """Hidden metrics shown: the old names stay behind, or go on in another unit (blocks)."""
    lines = [
        f"vllm:gpu_prefix_cache_queries_total{{{M}}} 1",
        f"vllm:prefix_cache_queries_total{{{M}}} 16",
        f"vllm:gpu_cache_usage_perc{{{M}}} 0.1",
        f"vllm:kv_cache_usage_perc{{{M}}} 0.2",
        *(line.replace("time_to_first_token", "time_per_output_token") for line in ttft(1, 1, 1)),
        *(line.replace("time_to_first_token", "inter_token_latency") for line in ttft(2, 2, 2)),
    ]
    engine = only(*lines)
    assert engine.counters == {Counter.PREFIX_CACHE_QUERIES: 16.0}
    assert engine.gauges == {Gauge.KV_CACHE_USAGE: 0.2}
    assert engine.histograms[Phase.ITL].count == 2


def test_more_engines_than_any_vllm_has_are_refused():
    lines = [f'vllm:num_requests_running{{{M},engine="{n}"}} {n}' for n in range(257)]
    assert len(page(*lines[:256]).engines) == 256
    with pytest.raises(PageTooLarge, match="256 pairs"):
        page(*lines)


def test_engines_past_the_bound_cost_no_more_than_the_lines_they_stand_on():
    """CPU per sample, each at its best of three: 9,000 engines beside as many series of one engine."""

    def layout(label):
        body = "".join(f'vllm:num_requests_running{{{M},{label}="{n}"}} 1\n' for n in range(9000))
        return page_reader().read(body.encode())

    def cost(read):
        begun = time.process_time()
        with suppress(PageTooLarge):
            SnapshotReader().read(read)
        return time.process_time() - begun

    engines, one = layout("engine"), layout("pid")
    assert min(cost(engines) for _ in range(3)) < 2 * min(cost(one) for _ in range(3))
