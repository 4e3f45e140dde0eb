"""What the sidecar reads from a packet, what it refuses, and the sums that are in it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from sidecar.requests import messages
from sidecar.requests.messages import (
    MAX_FINISHED,
    READ_VERSIONS,
    Configuration,
    FinishedRequest,
    HelloState,
    Malformed,
    ReportEnd,
    StepKey,
    StepTally,
    Unreadable,
    read_packet,
)
from sidecar.requests.tables import GROUPED, Table
from sidecar.requests.tally import NO_REQUESTS, Outcome, Tally
from tests.requests.packets import (
    END,
    FINISHED,
    HELLO,
    REPORT,
    REPORT_VERSION_2,
    STEPS,
    TABLES,
    finishing,
    packet,
    row,
)

TOTAL = Tally(
    stopped=3, length=2, aborted=3, error=5, drafts=10, draft_tokens=30, accepted_tokens=20
)


def test_a_packet_is_read_with_all_its_parts():
    """Every field of the format arrives as what it was."""
    read = read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))

    assert read.hello is not None
    assert (read.hello.state, read.hello.speculation.method) == (HelloState.OBSERVING, "ngram")
    assert read.hello.speculation.schedule == ((1, 4, 3),)
    assert read.hello.configuration == Configuration(max_num_seqs=64, quantization="fp8")
    known = {*HELLO["tables"]} - {"steps"}
    assert read.hello.tables == known, "tables that it does not know are left"
    tables = read.report.tables
    warm, hot = tables[Table.TEMPERATURE]
    assert (warm.key, warm.since, hot.key) == (70, 1.7e9, 201)
    assert warm.counts + hot.counts == replace(
        TOTAL, drafted_at=(10, 10, 10), accepted_at=(10, 7, 3)
    )
    others = tables[Table.PROMPT_TOKENS] + tables[Table.OUTPUT]
    assert [(row.key, row.counts) for row in others] == [(7, TOTAL), ("free", TOTAL)]
    assert [row.key for row in tables[Table.ADAPTER]] == ["", "other"]
    assert [row.key for row in tables[Table.ENDING]] == ["loop"]
    (steps,) = read.report.steps
    assert (steps.key, steps.counts) == (StepKey(3, 5, is_mixed=True), StepTally(**STEPS))
    assert read.report.end == ReportEnd(**{**END, "total": TOTAL})
    assert [table for table, _ in read.report.rows].count(Table.TEMPERATURE) == 2
    finished = {**FINISHED, "parameters": ("min_p",), "outcome": Outcome.ABORTED}
    assert read.report.finished == (FinishedRequest(**finished),)


def test_version_2_becomes_the_same_structures_and_says_nothing_of_what_is_new():
    """Pods with the plug-in of an earlier release keep their split."""
    hello = {name: value for name, value in HELLO.items() if name != "tables"}
    old = read_packet(packet(2, hello=hello, report=REPORT_VERSION_2))
    new = read_packet(packet(hello=HELLO, report=REPORT))

    assert old.hello == replace(new.hello, tables=None)
    assert old.report.tables == {
        table: rows for table, rows in new.report.tables.items() if table is not Table.ENDING
    }
    assert [row.key for row in old.report.steps] == [StepKey(3)]
    assert old.report.end == ReportEnd(total=TOTAL, lost=0)


def test_unknown_fields_and_tables_are_ignored():
    """So that a later plug-in may send more without another version of the format."""
    table = [{"key": 1, "since": 1, "counts": {}, "new": 1}]
    tables = {**TABLES, "backend": table}
    tables["output"] = [{**row, "counts": {**row["counts"], "new": 1}} for row in TABLES["output"]]
    later = {
        "tables": tables,
        **finishing({**FINISHED, "new": {}}),
        "end": {**END, "new": 1},
    }
    hello = {**HELLO, "new": 1, "tables": [*HELLO["tables"], "backend"]}

    read = read_packet(packet(hello=hello, report=later, new=1))

    assert read == read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))


WRONG_HELLO = (
    *({"state": "asleep"}, {"reason": "x" * 201}, {"engine": -1}, {"start": ""}),
    *({"tables": tables} for tables in ("temperature", {"temperature": 1}, ["x"] * 65)),
)
WRONG_FINISHED = (
    *({"temperature": temperature} for temperature in ("70", True)),
    *({"arrival": arrival} for arrival in (float("nan"), float("inf"))),
    *({"drafts": 2**53 + 1}, {"accepted_tokens": -1}, {"outcome": "lost"}),
)


WRONG_TABLES: tuple[dict[str, Any], ...] = (
    *({"temperature": [row(key)]} for key in ("hot", -1, 10**9)),
    {"temperature": [row(70, drafted_at=[0] * 33)]},
    {"temperature": [row(70, since=float("inf"))]},
    {"prompt_tokens": [row(65)]},
    *({table: [row("else")]} for table, one in GROUPED.items() if one.labels),
    {"adapter": [row("a" * 257)]},
    {"adapter": [row(str(key)) for key in range(258)]},
    *(
        {"steps": [{"key": key, "since": 1, "counts": STEPS}]}
        for key in (3, [3, 5], [3, 5, 1], [3, 21, True], [-1, 5, True])
    ),
    {"steps": [{"key": [1, 1, False], "since": 1, "counts": {**STEPS, "request_seconds": -0.5}}]},
    # More accepted than drafted, in a row and at a position:
    {"output": [row("free", drafts=1, draft_tokens=2, accepted_tokens=3)]},
    {"temperature": [row(70, drafts=1, draft_tokens=1, drafted_at=[1, 0], accepted_at=[0, 1])]},
    # Positions that do not sum to the row's draft tokens:
    {"temperature": [row(70, drafts=1, draft_tokens=3, drafted_at=[1, 1])]},
)


@pytest.mark.parametrize(
    "parts",
    [
        *({"hello": {**HELLO, **wrong}} for wrong in WRONG_HELLO),
        *({"report": finishing({**FINISHED, **wrong})} for wrong in WRONG_FINISHED),
        {"report": {"end": {**END, "total": [1, 2, 3]}}},
        {"report": {"end": {"total": END["total"]}}},
        {"report": {"end": {**END, "lost": 1.5}}},
        *({"report": {"tables": tables}} for tables in WRONG_TABLES),
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
    ],
)
def test_a_field_out_of_its_type_or_range_refuses_the_packet(parts):
    """Any process may write to the socket."""
    with pytest.raises(Malformed):
        read_packet(packet(**parts))


VERSIONS = {2: messages._PacketVersion2, 3: messages._PacketVersion3}


@pytest.mark.parametrize(
    ("options", "is_read"),
    [
        ('{"method": "eagle3", "model": "/m", "num_speculative_tokens": 3}', True),
        ("not JSON", False),
        ("[1]", False),
        ('{"model": {"nested": 1}}', False),
        ("[" * 2000, False),
        (json.dumps({"model": "m" * 5000}), False),
    ],
)
def test_the_speculative_config_is_read_only_as_an_object_of_plain_values(options, is_read):
    """It is shown to be pasted, so nothing else may stand there."""
    hello = {**HELLO, "speculation": {**HELLO["speculation"], "options": options}}
    if not is_read:
        with pytest.raises(Malformed):
            read_packet(packet(hello=hello))
        return

    assert read_packet(packet(hello=hello)).hello.speculation.options == options


@pytest.mark.parametrize("version", READ_VERSIONS)
@pytest.mark.parametrize(
    "report",
    [
        b'"finished":[' + b"{}," * 20_000 + b"{}]",
        b'"steps":[' + b"[]," * 20_000 + b"[]]",
        b'"tables":{"steps":[' + b"[]," * 20_000 + b"[]]}",
        b'"tables":{"temperature":[' + b"7," * 20_000 + b"7]}",
        b'"finished":[{"parameters":[' + b"7," * 15_000 + b"7]}]",
    ],
)
def test_what_is_wrong_with_a_packet_is_not_all_collected(version, report):
    """That would take 150 ms for a packet of the largest size."""
    text = b'{"v":%d,"report":{%s,"end":7}}' % (version, report)

    with pytest.raises(Malformed):
        read_packet(text)
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(VERSIONS[version]).validate_json(text, strict=True)

    assert wrong.value.error_count() < 20


@pytest.mark.parametrize(
    "text", [b'{"v": 4, "hello": {"plugin": "1.4", "state": 7}, "report": 5}', b'{"v": 0}']
)
def test_a_packet_of_another_version_is_known_as_such(text):
    """The page then says to regenerate the plug-in."""
    assert read_packet(text) == Unreadable(json.loads(text)["v"])


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b'{"v": "3"}', b'{"v": 3, "hello": 1}', b'{"v": -1}', b"\xff", b"[" * 999],
)
def test_what_is_no_packet_of_any_version_is_malformed(text):
    """It is none of a plug-in, so it is counted as malformed."""
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
    """Positions of different depth add up place by place."""
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
    assert FIRST + NO_REQUESTS == FIRST


def test_requests_and_acceptance_rate_follow_from_the_counts():
    """All outcomes together are the finished requests."""
    assert FIRST.requests == 3
    assert FIRST.by_outcome == {**dict.fromkeys(Outcome, 0), Outcome.STOPPED: 1, Outcome.ABORTED: 2}


@pytest.mark.parametrize("name", [*Outcome, "drafts", "draft_tokens", "accepted_tokens"])
def test_a_tally_has_fallen_if_any_number_has(name):
    """A total that falls is another life's, or a lie."""
    more = Tally(**{name: 1})
    assert NO_REQUESTS.has_fallen(more)
    assert not more.has_fallen(NO_REQUESTS)
    assert not more.has_fallen(more)
