"""Which engines a page has, and what they are called."""

import pytest

from sidecar.engine.exposition import Series
from sidecar.engine.layout import page_layout
from sidecar.engine.snapshot import SnapshotReader
from tests.engine.engine_tools import page_reader

RAY = {"Component": "core_worker", "NodeAddress": "10.0.0.1", "SessionName": "s"}
FAMILIES = ("num_requests_running", "generation_tokens_total", "prompt_tokens_total")


def series(prefix="vllm:", **labels):
    labels = {"model_name": "m", "engine": "0", **labels}
    return [Series(f"{prefix}{family}", tuple(labels.items())) for family in FAMILIES]


def names(*engines, known=()):
    """The names of the engines on a page of these series."""
    page = [one for engine in engines for one in engine]
    return [layout.key.engine for layout in page_layout(page, known).engines]


def ray(replica, worker, **labels):
    return series("ray_vllm_", **RAY, ReplicaId=replica, WorkerId=worker, **labels)


def test_replicas_on_a_ray_page_are_engines_of_their_own_and_keep_their_names():
    first = ray("aaa", "w1")
    second = ray("bbb", "w2")

    assert names(first, second) == ["0@aaa", "0@bbb"]
    assert names(first) == ["0@aaa"], "the name is a function of its own labels"


def test_a_ray_page_without_replicas_is_told_apart_by_workers():
    labels = [{**RAY, "WorkerId": worker} for worker in ("w1", "w2")]

    assert names(*(series("ray_vllm_", **each) for each in labels)) == ["0@w1", "0@w2"]


def test_one_replica_with_two_workers_is_two_engines():
    assert names(ray("aaa", "w1"), ray("aaa", "w2")) == ["0@aaa@w1", "0@aaa@w2"]


def test_labels_that_do_not_tell_engines_apart_are_no_part_of_the_name():
    """Such as those of Dynamo's worker, which change with each restart."""
    worker = {"worker_id": "dd69", "dynamo_namespace": "default"}

    assert names(series(**worker), series(**worker | {"engine": "1"})) == ["0", "1"]


@pytest.mark.parametrize("label", ["stage", "pod", "anything"])
def test_engines_of_one_number_are_told_apart_by_whatever_label_does(label):
    engines = [series(node="same", **{label: value}) for value in ("x", "y")]

    assert names(*engines) == ["0@x", "0@y"]


def test_an_engine_that_is_left_alone_keeps_the_name_that_told_it_apart():
    reader = SnapshotReader()
    read = page_reader()
    lines = {
        value: "".join(
            f'vllm:{family}{{model_name="m",engine="0",stage="{value}"}} 1\n' for family in FAMILIES
        )
        for value in ("x", "y")
    }
    reader.read(read.read("".join(lines.values()).encode()))

    (engine,) = reader.read(read.read(lines["x"].encode())).engines

    assert engine.key.engine == "0@x"


def test_a_label_of_only_some_quantities_splits_these_and_not_the_engine():
    """As the reason for which a request waits."""
    shares = [
        Series("vllm:num_requests_waiting_by_reason", (("model_name", "m"), ("reason", reason)))
        for reason in ("capacity", "deferred")
    ]

    assert names(series(), shares) == ["0"]


def test_a_name_is_bounded_and_readable_whatever_the_label_holds():
    """Long or unprintable values are replaced by a short hash."""
    (first, second) = names(ray("x" * 500, "w1"), ray("ü\n" * 5, "w2"))

    assert len(first) == len(second) == len("0@") + 8
    assert first.isascii()
    assert second.isascii()


def test_a_page_that_is_collected_from_replicas_has_no_start_time_and_is_no_sum():
    """The start time is that of the agent."""
    body = "process_start_time_seconds 1.7e9\n" + "".join(
        f'ray_vllm_{family}{{model_name="m",engine="0",ReplicaId="{replica}"}} 1\n'
        for replica in ("a", "b")
        for family in FAMILIES
    )

    page = SnapshotReader().read(page_reader().read(body.encode()))

    assert (page.process_start, page.shows_replicas, page.is_sum) == (None, True, False)
    assert page.key_of("m", "0").engine == "0", "nobody knows which of the two a plug-in is in"
    assert [key.engine for key in page.keys_of("m", "0")] == ["0@a", "0@b"]
