"""What the sidecar reads from a packet, what it refuses, and the sums that are in it."""

import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError

from sidecar.requests.messages import (
    MAX_FINISHED,
    Configuration,
    FinishedRequest,
    HelloState,
    Malformed,
    Packet,
    ReportEnd,
    StepTally,
    Table,
    Unreadable,
    read_packet,
)
from sidecar.requests.tally import NOTHING, Outcome, Tally
from tests.requests.packets import END, FINISHED, HELLO, REPORT, STEPS, finishing, packet, row

TOTAL = Tally(
    stopped=3, length=2, aborted=3, error=5, drafts=10, draft_tokens=30, accepted_tokens=20
)


def test_a_packet_is_read_with_all_its_parts():
    read = read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))
    assert read.hello is not None
    assert (read.hello.state, read.hello.speculation.method) == (HelloState.OBSERVING, "ngram")
    assert (read.hello.speculation.schedule, read.hello.speculation.draft_sample_method) == (
        ((1, 4, 3),),
        "greedy",
    )
    assert read.hello.configuration == Configuration(max_num_seqs=64, quantization="fp8")
    report = read.report
    assert report is not None
    warm, other = report.temperature
    assert (warm.key, warm.since, other.key) == (70, 1.7e9, "other")
    assert warm.counts + other.counts == replace(
        TOTAL, drafted_at=(10, 10, 10), accepted_at=(10, 7, 3)
    )
    assert [(row.key, row.counts) for row in report.prompt_tokens + report.output] == [
        (7, TOTAL),
        ("free", TOTAL),
    ]
    assert [row.key for row in report.adapter] == ["", "other"]
    assert report.steps[0].counts == StepTally(
        steps=10, decodes=80, request_seconds=4.0, tokens=100
    )
    assert report.end == ReportEnd(total=TOTAL, lost=0)
    assert [table for table, _ in report.rows] == [
        *[Table.TEMPERATURE] * 2,
        Table.PROMPT_TOKENS,
        Table.OUTPUT,
        Table.SAMPLING,
        *[Table.ADAPTER] * 2,
    ]
    finished = {**FINISHED, "parameters": ("min_p",), "outcome": Outcome.ABORTED}
    assert report.finished == (FinishedRequest(**finished),)


def test_unknown_fields_and_tables_are_ignored():
    """So that a later plug-in may send more without another version of the format."""
    table = [{"key": 1, "since": 1, "counts": {}, "new": 1}]
    later = {
        **REPORT,
        "backend": table,
        **finishing({**FINISHED, "new": {}}),
        "end": {**END, "new": 1},
    }
    later["output"] = [{**later["output"][0], "counts": {**later["output"][0]["counts"], "new": 1}}]
    read = read_packet(packet(hello={**HELLO, "new": 1}, report=later, new=1))
    assert read == read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))


WRONG_HELLO = ({"state": "asleep"}, {"reason": "x" * 201}, {"engine": -1}, {"start": ""})
WRONG_FINISHED = (
    *({"temperature": temperature} for temperature in ("70", True)),
    *({"arrival": arrival} for arrival in (float("nan"), float("inf"))),
    *({"drafts": 2**53 + 1}, {"accepted_tokens": -1}, {"outcome": "lost"}),
)


@pytest.mark.parametrize(
    "parts",
    [
        *({"hello": {**HELLO, **wrong}} for wrong in WRONG_HELLO),
        *({"report": finishing({**FINISHED, **wrong})} for wrong in WRONG_FINISHED),
        {"report": {"end": {**END, "total": [1, 2, 3]}}},
        {"report": {"end": {"total": END["total"]}}},
        {"report": {"end": {**END, "lost": 1.5}}},
        {"report": {"temperature": [row("hot")]}},
        {"report": {"temperature": [row(70, drafted_at=[0] * 33)]}},
        {"report": {"temperature": [row(70, since=float("inf"))]}},
        {"report": {"prompt_tokens": [row(65)]}},
        {"report": {"output": [row("prose")]}},
        {"report": {"adapter": [row("a" * 257)]}},
        {"report": {"adapter": [row(str(key)) for key in range(258)]}},
        {
            "report": {
                "steps": [{"key": 1, "since": 1, "counts": {**STEPS, "request_seconds": -0.5}}]
            }
        },
        {"report": finishing({key: FINISHED[key] for key in FINISHED if key != "arrival"})},
        {"report": finishing(*[FINISHED] * (MAX_FINISHED + 1))},
        {"report": {"finished": FINISHED}},
        # More accepted than drafted:
        {"report": finishing(FINISHED, {**FINISHED, "accepted_tokens": 61})},
        {
            "report": {
                "end": {**END, "total": {"drafts": 1, "draft_tokens": 2, "accepted_tokens": 3}}
            }
        },
        {"report": {"output": [row("free", drafts=1, draft_tokens=2, accepted_tokens=3)]}},
        {
            "report": {
                "temperature": [
                    row(70, drafts=1, draft_tokens=1, drafted_at=[1, 0], accepted_at=[0, 1])
                ]
            }
        },
        # of one row
        {"report": {"temperature": [row(70, drafts=1, draft_tokens=3, drafted_at=[1, 1])]}},
    ],
)
def test_a_field_out_of_its_type_or_range_refuses_the_packet(parts):
    with pytest.raises(Malformed):
        read_packet(packet(**parts))


@pytest.mark.parametrize(
    "text",
    [
        b'{"v":2,"report":{"finished":[' + b"{}," * 20_000 + b"{}]}}",
        b'{"v":2,"report":{"steps":[' + b"[]," * 20_000 + b"[]]}}",
        b'{"v":2,"report":{"finished":[{"parameters":[' + b"7," * 15_000 + b"7]}]}}",
    ],
)
def test_what_is_wrong_with_a_packet_is_not_all_collected(text):
    """That would take 150 ms for a packet of the largest size."""
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(Packet).validate_json(text, strict=True)
    assert wrong.value.error_count() < 20


@pytest.mark.parametrize(
    "text", [b'{"v": 3, "hello": {"plugin": "1.4", "state": 7}, "report": 5}', b'{"v": 0}']
)
def test_a_packet_of_another_version_is_known_as_such(text):
    assert read_packet(text) == Unreadable(json.loads(text)["v"])


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"v": "2"}', b'{"v": -1}', b"\xff", b"[" * 999]
)
def test_what_is_no_packet_of_any_version_is_malformed(text):
    with pytest.raises(Malformed):
        read_packet(text)


FIRST = Tally(
    stopped=1,
    aborted=2,
    drafts=4,
    draft_tokens=9,
    accepted_tokens=5,
    drafted_at=(4, 3, 2),
    accepted_at=(3, 2, 0),
)


def test_a_sum_and_its_growth_are_those_of_every_number():
    other = Tally(
        length=3,
        error=1,
        drafts=1,
        draft_tokens=4,
        accepted_tokens=4,
        drafted_at=(1,) * 4,
        accepted_at=(1,) * 4,
    )
    both = FIRST + other
    assert both == Tally(
        stopped=1, length=3, aborted=2, error=1, drafts=5, draft_tokens=13, accepted_tokens=9,
        drafted_at=(5, 4, 3, 1), accepted_at=(4, 3, 1, 1),
    )  # fmt: skip
    assert both - other == replace(FIRST, drafted_at=(4, 3, 2, 0), accepted_at=(3, 2, 0, 0))
    assert FIRST + NOTHING == FIRST


def test_requests_and_acceptance_rate_follow_from_the_counts():
    assert FIRST.requests == 3
    assert FIRST.by_outcome == {**dict.fromkeys(Outcome, 0), Outcome.STOPPED: 1, Outcome.ABORTED: 2}


@pytest.mark.parametrize("name", [*Outcome, "drafts", "draft_tokens", "accepted_tokens"])
def test_a_tally_has_fallen_if_any_number_has(name):
    more = Tally(**{name: 1})
    assert NOTHING.has_fallen(more)
    assert not more.has_fallen(NOTHING)
    assert not more.has_fallen(more)
