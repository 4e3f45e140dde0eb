"""From layouts to engines: what belongs to which.

Also what is summed or selected, and what contradicts itself.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.engine import layout
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.snapshot import SnapshotReader
from sidecar.errors import NoVllmMetrics, PageError, PageTooLarge
from tests.engine.engine_tools import RUNNING, M, only, page, page_reader, snapshot, ttft


def test_engines_come_in_the_order_of_their_numbers():
    """One of hundreds of digits is a name like any other."""
    names = ["9" * 512, "10", "2", "0", "1"]
    lines = [f'vllm:num_requests_running{{{M},engine="{name}"}} 1' for name in names]
    assert [engine.key.engine for engine in page(*lines).engines] == [
        "0",
        "9" * 512,
        "1",
        "2",
        "10",
    ]


def test_several_models_on_one_page_stay_apart():
    both = page(
        'vllm:num_requests_running{engine="0",model_name="b"} 1',
        'vllm:num_requests_running{engine="0",model_name="a"} 2',
        'vllm:generation_tokens_total{engine="0",model_name="b"} 3',
    )
    assert [(e.key.model_name, e.gauges[Gauge.REQUESTS_RUNNING]) for e in both.engines] == [
        ("a", 2.0),
        ("b", 1.0),
    ]
    assert [e.counters for e in both.engines] == [{}, {Counter.GENERATION_TOKENS: 3.0}]


@pytest.mark.parametrize("is_created", [True, False], ids=["at 0", "without a series"])
def test_of_the_rust_frontend_s_engines_one_that_drafts_tells_that_all_do(is_created):
    """They have one configuration; while none has drafted, it is not known to speculate."""

    def engines(drafts):
        lines = ["# TYPE vllm:num_requests_running gauge"]
        for engine, count in enumerate((0, drafts)):
            labels = f'{M},engine="{engine}"'
            lines.append(f"vllm:num_requests_running{{{labels}}} 1")
            if is_created or count:
                lines += [
                    f"vllm:spec_decode_num_{name}_total{{{labels}}} {count}"
                    for name in ("drafts", "draft_tokens", "accepted_tokens")
                ]
        body = "\n".join([*lines, "# EOF", ""])
        return snapshot(body.encode()).engines

    assert [engine.speculates for engine in engines(0)] == [False, False]
    assert [engine.speculates for engine in engines(5)] == [True, True]
    assert [engine.counters[Counter.DRAFTS] for engine in engines(5)] == [0.0, 5.0]


def test_other_programs_names_and_series_without_a_model_belong_to_no_engine():
    """A page that has only those is an error, not an empty vLLM."""
    no_engine = [
        "vllm:num_requests_running 1",
        f"sglang:{RUNNING[5:]}",
        f"my{RUNNING}",
        "# TYPE up gauge",
    ]
    assert only(*no_engine, f"vllm:num_requests_waiting{{{M}}} 2").gauges == {
        Gauge.REQUESTS_WAITING: 2.0
    }
    with pytest.raises(NoVllmMetrics):
        page(*no_engine)


def test_processes_that_count_apart_are_summed():
    lines = [
        f'vllm:generation_tokens_total{{{M},pid="{pid}"}} {value}'
        for pid, value in ((1, 10), (2, 20))
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{M},pid="{pid}",position="{position}"}}'
        f" {value}"
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


@pytest.mark.parametrize(
    ("samples", "usage"),
    [
        (
            [
                ("kv_cache_usage_perc", f'pid="{pid}"', value)
                for pid, value in ((1, 0.0), (2, 0.6), (3, 0.2))
            ],
            0.6,
        ),
        ([("kv_cache_usage_perc", 'pid="1"', 0.9), ("gpu_cache_usage_perc", "", 0.4)], 0.4),
    ],
    ids=["the highest of several processes", "one of all processes wins over one per process"],
)
def test_kv_cache_usage_is_that_of_all_processes_or_else_the_highest_of_one(samples, usage):
    """A sum or a mean of shares would be no share of any cache."""
    lines = [f"vllm:{name}{{{M},{labels}}} {value}" for name, labels, value in samples]
    assert only(*lines).gauges == {Gauge.KV_CACHE_USAGE: usage}


def config(size, engine="0", name="num_gpu_blocks"):
    return f'vllm:cache_config_info{{block_size="16",engine="{engine}",{name}="{size}"}} 1.0'


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
        # Nothing says which model each setting belongs to.
        ([config("100"), config("200")], None),
        ([config("100"), config("100").replace("block_size", 'a="b",block_size')], 1600),
    ],
)
def test_kv_cache_capacity_is_known_if_one_setting_belongs_to_the_engine(lines, capacity):
    """With several of one engine, nobody knows whose each is."""
    assert only(RUNNING, *lines).kv_cache_capacity_tokens == capacity


def test_a_histogram_without_its_last_bucket_is_absent():
    """Its total is not known."""
    assert (
        only(RUNNING, *ttft(1, 2, edges=("0.1", "1.0"), labels=M + ',engine="0"')).histograms == {}
    )


@pytest.mark.parametrize(
    ("edges", "counts", "read"),
    [
        (
            ("+Inf", "1e-1", "10", "1"),
            (5, 1, 3, 2),
            {0.1: 1.0, 1.0: 2.0, 10.0: 3.0, float("inf"): 5.0},
        ),
        *(
            (("0.1", edge, "1.0", "+Inf"), (1, 7, 2, 3), {0.1: 1.0, 1.0: 2.0, float("inf"): 3.0})
            for edge in ("NaN", "nan", "x", "", "1_0", "-Inf", "-1", "0")  # no latencies
        ),
    ],
)
def test_buckets_are_read_in_any_order_and_notation_without_those_that_are_no_latency(
    edges, counts, read
):
    """Go and Python write the same edge in other ways."""
    histogram = only(*ttft(*counts, edges=edges)).histograms[Phase.TTFT]
    assert dict(zip(histogram.edges, histogram.counts, strict=True)) == read
    assert histogram.edges == tuple(read)


@pytest.mark.parametrize("positions", [("0", "2"), ("1", "2"), ("x",), ("-1",), ("9" * 5000,)])
def test_positions_with_a_gap_are_absent(positions):
    """Else the rates of later positions would move up."""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert (
        only(
            RUNNING, *(f'{name}{{{M},engine="0",position="{p}"}} 1' for p in positions)
        ).accepted_per_position
        == ()
    )


def test_the_new_name_is_read_if_a_page_has_both():
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
    """A page of another program must not fill the memory."""
    lines = [f'vllm:num_requests_running{{{M},engine="{n}"}} {n}' for n in range(257)]
    assert len(page(*lines[:256]).engines) == 256
    with pytest.raises(PageTooLarge, match="256 pairs"):
        page(*lines)


@pytest.mark.parametrize(
    "counts",
    [(3, 2, 4), (3, 4, 2), (-1, 2, 3), ("NaN", 2, 3), (1, "NaN", 3), (1, 2, "NaN"), (1, 2, "+Inf")],
)
def test_contradictory_histograms_are_dropped_and_counted(counts):
    """Cumulative counts never fall."""
    contradictory = page(RUNNING, *ttft(*counts, labels=M + ',engine="0"'))
    assert (contradictory.engines[0].histograms, contradictory.malformed) == ({}, 1)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "1.7e308"])
def test_impossible_values_are_absent(value):
    """The other values of the page are read."""
    lines = [
        f"vllm:generation_tokens_total{{{M}}} {value}",
        f"vllm:kv_cache_usage_perc{{{M}}} {value}",
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{M},position="0"}} {value}',
        f"vllm:num_requests_running{{{M}}} 1",
    ]
    engine = only(*lines)
    assert (engine.counters, engine.accepted_per_position) == ({}, ())
    assert engine.gauges == {Gauge.REQUESTS_RUNNING: 1.0}


def test_a_full_kv_cache_is_possible_and_one_of_40_is_not():
    """It is a share, whatever its name says of percent."""
    usage = [only(f"vllm:kv_cache_usage_perc{{{M}}} {value}").gauges for value in (1, 40)]
    assert usage == [{Gauge.KV_CACHE_USAGE: 1.0}, {}]


@pytest.mark.parametrize(
    "values", [("1e308", "1e308"), ("+Inf", "-Inf"), ("NaN", "1"), ("+Inf", "1")]
)
def test_impossible_sums_over_processes_are_absent(values):
    lines = [
        f'vllm:generation_tokens_total{{{M},pid="{pid}"}} {value}'
        for pid, value in enumerate(values)
    ]
    assert only(*lines).counters == {}


START = "process_start_time_seconds"


@pytest.mark.parametrize(
    ("lines", "start"),
    [
        ([], None),
        ([f"{START} 1.5e9"], 1.5e9),
        ([f'{START}{{pid="1"}} 1', f'{START}{{pid="2"}} 2'], None),
        # It differs from itself, and would look like a restart at every poll.
        ([f"{START} NaN"], None),
        ([f"{START} +Inf"], None),
    ],
)
def test_the_process_start_is_known_if_a_page_has_one_that_is_a_time(lines, start):
    """With several processes on a page, no start is that of vLLM."""
    assert page(RUNNING, *lines).process_start == start


_LABEL_VALUES = st.sampled_from(["0", "1", "-1", "x", "", "NaN", "+Inf", "0.1", "1e400", "\u0663"])
_SAMPLE_VALUES = st.sampled_from(["0", "1", "2.5", "-3", "NaN", "+Inf", "-Inf", "1e308", "5e-324"])
_NAMES = st.sampled_from(
    [
        "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "vllm:time_to_first_token_seconds_bucket", "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info", "vllm:num_requests_running", START,
    ]
)  # fmt: skip
_LABELS = st.dictionaries(
    st.sampled_from(
        ["model_name", "engine", "position", "le", "pid", "num_gpu_blocks", "block_size"]
    ),
    _LABEL_VALUES,
)


@given(st.lists(st.tuples(_NAMES, _LABELS, _SAMPLE_VALUES), max_size=25))
@settings(max_examples=150)
def test_whatever_labels_and_values_a_page_has_only_page_errors_are_raised(samples):
    """And what is read is finite, sorted and not negative."""
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
            numbers = [
                *engine.counters.values(),
                *engine.gauges.values(),
                *engine.accepted_per_position,
            ]
            numbers += [
                count for histogram in engine.histograms.values() for count in histogram.counts
            ]
            assert all(0 <= number < float("inf") for number in numbers)
            for histogram in engine.histograms.values():
                assert list(histogram.edges) == sorted(set(histogram.edges))
                assert list(histogram.counts) == sorted(histogram.counts)


def server(name):
    return f'specdec_server_info{{id="{name}"}} 1.0'


def test_the_ids_of_a_page_s_servers_are_those_that_our_plug_in_put_there():
    """A multiprocess directory that nobody wiped has several."""
    assert page(RUNNING).servers == frozenset()
    assert page(RUNNING, server("a1b2")).servers == {"a1b2"}
    assert page(server("a1b2"), RUNNING, server("c3")).servers == {"a1b2", "c3"}


@pytest.mark.parametrize(
    ("ids", "unread"),
    [
        ([f"{number:04}" for number in range(layout.MOST_SERVERS + 4)], 4),
        (["", "a"], 1),
        (["a" * 65, "a"], 1),
    ],
    ids=["too many", "empty", "too long"],
)
def test_ids_that_are_not_read_are_counted(ids, unread):
    shown = page(RUNNING, *map(server, ids))

    assert shown.servers == set(
        sorted(one for one in ids if 0 < len(one) < 65)[: layout.MOST_SERVERS]
    )
    assert shown.malformed == unread


def test_a_page_of_nothing_but_an_id_is_none_of_vllm_s():
    with pytest.raises(NoVllmMetrics):
        page(server("a"))
