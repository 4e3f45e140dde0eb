import gzip
import json
from pathlib import Path

import pytest

from sidecar.errors import RecordingError
from sidecar.recording.recording import read_requests, read_scrapes
from sidecar.recording.replay import replay
from sidecar.requests.record import Outcome

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
PAGE = """# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 12
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 9
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 5
"""
REQUEST = {
    "id": 1,
    "path": "/v1/chat/completions",
    "temperature": 0.4,
    "stream": True,
    "max_tokens": 9,
    "start": 100.0,
    "chunks": [0.1, 0.25, 0.5],
    "usage": {"prompt_tokens": 4, "completion_tokens": 5},
    "end": 101.0,
    "speculative_decoding": {
        "num_spec_steps": 2,
        "num_draft_tokens": 6,
        "num_accepted_draft_tokens": 3,
        "acceptance_histogram": [0, 1, 1, 0],
    },
}


def write(directory, name, lines, *, packed=False):
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    if packed:
        (directory / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (directory / f"{name}.jsonl").write_text(text)
    return directory


@pytest.mark.parametrize("packed", [False, True])
def test_a_request_is_read_as_a_source_reports_it(tmp_path, packed):
    (record,) = read_requests(write(tmp_path, "requests", [REQUEST], packed=packed))
    assert (record.id, record.temperature, record.choices, record.completion_tokens) == ("1", 0.4, 1, 5)
    assert record.outcome is Outcome.COMPLETED
    # A chat's first event carries the role and no token.
    assert (record.first_token, record.stream_events) == (100.25, 2)
    assert (record.acceptance.drafts, record.acceptance.histogram) == (2, (0, 1, 1, 0))


def test_a_completion_has_no_event_of_its_own_for_the_role(tmp_path):
    (record,) = read_requests(write(tmp_path, "requests", [REQUEST | {"path": "/v1/completions"}]))
    assert (record.first_token, record.stream_events) == (100.1, 3)


def test_what_is_not_recorded_is_none(tmp_path):
    bare = REQUEST | {"temperature": None, "chunks": [], "stream": False, "usage": None, "speculative_decoding": None}
    bare |= {"outcome": "aborted", "choices": 2}
    (record,) = read_requests(write(tmp_path, "requests", [bare]))
    assert (record.temperature, record.first_token, record.completion_tokens, record.acceptance) == (None,) * 4
    assert (record.outcome, record.choices, record.stream_events) == (Outcome.ABORTED, 2, 0)


def test_a_poll_has_its_middle_time_and_an_unusable_page_is_a_failed_poll(tmp_path):
    lines = [{"start": 1.0, "end": 1.5, "text": PAGE}, {"start": 2.0, "end": 2.0, "text": "<html>"}]
    first, second = read_scrapes(write(tmp_path, "scrapes", lines))
    assert first.at == 1.25
    assert first.snapshot.engines[0].counters["drafts"] == 3
    assert second.snapshot is None


@pytest.mark.parametrize(
    "lines",
    [
        ["{\n"],
        ["[]\n"],
        [{"id": 1}],
        [REQUEST | {"start": "soon"}],
        [REQUEST | {"outcome": "vanished"}],
        [REQUEST | {"usage": [1]}],
        [REQUEST | {"speculative_decoding": {}}],
    ],
)
def test_a_damaged_request_is_an_error_that_names_the_file(tmp_path, lines):
    with pytest.raises(RecordingError, match=r"requests\.jsonl"):
        list(read_requests(write(tmp_path, "requests", lines)))


def test_a_damaged_poll_a_cut_file_and_a_missing_one_are_errors(tmp_path):
    with pytest.raises(RecordingError, match="line 1"):
        list(read_scrapes(write(tmp_path, "scrapes", [{"start": 1.0}])))
    with pytest.raises(RecordingError):
        list(read_scrapes(tmp_path / "nowhere"))
    write(tmp_path, "requests", [REQUEST] * 50, packed=True)
    packed = tmp_path / "requests.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(RecordingError):
        list(read_requests(tmp_path))


def test_the_result_of_a_replay_as_json():
    result = replay(RECORDINGS / "draft_model-k5-default", infer=True).as_json()
    assert json.loads(json.dumps(result)) == result
    assert {"temperatures", "coverage", "residual", "speedup"} <= result.keys()
    assert list(result["temperatures"]) == ["0", "0-0.3", "0.5-0.7", "0.7-1", "default"]
    for bucket in result["temperatures"].values():
        assert bucket["attribution"] == "inferred"
        assert bucket["p10"] <= bucket["p50"] <= bucket["p90"]
        assert isinstance(bucket["draft_tokens"], int)


def test_a_recording_without_speculation_gives_no_number(tmp_path):
    bare = PAGE.split("# TYPE vllm:spec", maxsplit=1)[0]
    write(tmp_path, "scrapes", [{"start": at, "end": at, "text": bare} for at in (99.0, 100.0, 101.0, 102.0)])
    write(tmp_path, "requests", [REQUEST | {"speculative_decoding": None}])
    result = replay(tmp_path, infer=False)
    assert result.coverage is result.residual is None
    bucket = result.temperatures["0.3-0.5"]
    assert (bucket.attribution, bucket.requests, bucket.acceptance, bucket.p50) == (None, 0, None, None)


def test_a_recording_without_a_single_poll_gives_no_number(tmp_path):
    write(tmp_path, "scrapes", [])
    write(tmp_path, "requests", [REQUEST])
    result = replay(tmp_path, infer=True)
    assert [request.attribution for request in result.requests] == ["none"]
