"""What the sidecar reads from a packet, what it refuses, and the sums that are in it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sidecar.requests import messages, plugin
from sidecar.requests.keys import CellKey
from sidecar.requests.messages import (
    MAX_ITEMS,
    VERSION,
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
from sidecar.requests.tally import (
    MAX_POSITIONS,
    NO_REQUESTS,
    Outcome,
    Tally,
    are_possible,
    tally_of,
)
from tests.requests.packets import (
    CELLS,
    END,
    FINISHED,
    HELLO,
    HOT,
    OWN,
    REPORT,
    STEP_CELLS,
    STEPS,
    WARM,
    finishing,
    packet,
)


def test_a_packet_is_read_with_all_its_parts():
    """Every field of the format arrives as what it was."""
    read = read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))

    hello = read.hello
    assert (hello.state, hello.speculation.method) == (HelloState.OBSERVING, "ngram")
    assert (hello.server, hello.own, hello.full) == ("a1b2", ("update_from_output",), False)
    assert hello.speculation.schedule == ((1, 4, 3),)
    assert hello.configuration == Configuration(max_num_seqs=64, quantization="fp8")

    assert read.report.cells == (
        (CellKey(70, 2, 7, "tenant"), tuple(WARM)),
        (CellKey(201, 0, None, None), tuple(HOT)),
    )
    assert read.report.steps == ((StepKey(8, 5, is_mixed=True), StepTally(**STEPS)),)
    endings = {
        "normal": Tally(stopped=2, length=2, aborted=3, error=5, drafts=8, draft_tokens=24,
                        accepted_tokens=14),
        "loop": Tally(stopped=1, drafts=2, draft_tokens=6, accepted_tokens=6),
        "empty": NO_REQUESTS,
    }  # fmt: skip
    assert read.report.end == ReportEnd(**{**END, "endings": endings})

    finished = {name: value for name, value in FINISHED.items() if name != "bits"} | {
        "structured": True, "sampling": "penalties", "parameters": ("min_p",), "is_own": False,
        "outcome": Outcome.ABORTED,
    }  # fmt: skip
    assert read.report.finished == (FinishedRequest(**finished),)


def test_the_numbers_of_a_cell_are_a_tally_by_position():
    """They count drafts by their length, of which the rest follows."""
    warm, hot = tally_of(WARM), tally_of(HOT)

    assert warm == Tally(
        stopped=1, length=2, aborted=3, error=4, drafts=6, draft_tokens=18, accepted_tokens=12,
        drafted_at=(6, 6, 6), accepted_at=(6, 4, 2),
    )  # fmt: skip
    assert warm + hot == Tally(
        stopped=3, length=2, aborted=3, error=5, drafts=10, draft_tokens=30, accepted_tokens=20,
        drafted_at=(10, 10, 10), accepted_at=(10, 7, 3),
    )  # fmt: skip
    assert tally_of(WARM, by_position=False) == replace(warm, drafted_at=(), accepted_at=())


@given(
    drafts=st.lists(
        st.integers(0, 40).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, 40)))
    )
)
def test_any_drafts_become_their_own_sums(drafts):
    """Short and long drafts in one cell; positions past the limit add to the last."""
    drafts = [(drafted, min(drafted, accepted)) for drafted, accepted in drafts]
    by_length = [0] * 82
    for drafted, accepted in drafts:
        by_length[drafted] += 1
        by_length[41 + accepted] += 1
    numbers = [0] * 5 + by_length

    tally = tally_of(numbers)

    assert are_possible(numbers)
    assert tally.drafts == len(drafts)
    assert tally.draft_tokens == sum(tally.drafted_at) == sum(one for one, _ in drafts)
    assert tally.accepted_tokens == sum(tally.accepted_at) == sum(one for _, one in drafts)
    assert tally.accepted_at[:31] == tuple(
        sum(accepted > place for _, accepted in drafts) for place in range(31)
    )
    assert len(tally.drafted_at) == MAX_POSITIONS


UNKNOWN = {**FINISHED, "temperature": None, "cached_tokens": None, "output_tokens": None} | (
    dict.fromkeys(("ending", "arrival", "first_token"))
)


def test_what_is_unknown_of_a_request_is_none_and_no_group():
    """As of a session's, or of parameters that are nonsense."""
    read = read_packet(packet(hello=HELLO, report=finishing(UNKNOWN, {**UNKNOWN, "bits": OWN})))

    one, own = read.report.finished
    assert (one.temperature, one.sampling, one.output_tokens, one.ending) == (None,) * 4
    assert (one.decoded_tokens, one.is_own, own.is_own) == (0, False, True)


def test_every_size_that_the_plugin_tells_is_read():
    """A packet with more names than are allowed would be refused as a whole."""
    sizes = dict.fromkeys(plugin.SIZES, 7)
    read = read_packet(packet(hello={**HELLO, "configuration": {"sizes": sizes}}))

    assert read.hello.configuration.sizes == sizes


def test_unknown_fields_are_ignored():
    """So that a later plug-in may send more without another version of the format."""
    later = {**REPORT, **finishing(FINISHED), "end": {**END, "new": 1}, "new": [1]}
    hello = {**HELLO, "new": 1, "configuration": {**HELLO["configuration"], "new": {}}}

    read = read_packet(packet(hello=hello, report=later, new=1))

    assert read == read_packet(packet(hello=HELLO, report={**REPORT, **finishing(FINISHED)}))


def cell(temperature=70, bits=0, prompt=7, adapter=None, numbers=WARM):
    return {"requests": [[temperature, bits, prompt, adapter, numbers]]}


def steps(decodes=8, context=5, is_mixed=False, **numbers):
    return {"steps": [[decodes, context, is_mixed, [*{**STEPS, **numbers}.values()]]]}


MANY = map(str, range(33))
WRONG_HELLO = (
    *({"state": "asleep"}, {"reason": "x" * 201}, {"engine": -1}, {"start": ""}),
    *({"server": ""}, {"server": "x" * 65}, {"own": "all"}, {"own": ["x"] * 17}, {"full": 1}),
    *({"vllm": "x" * 65}, {"vllm": 32}),
    *({"configuration": {"sizes": sizes}} for sizes in ([1], {"a": -1}, {"a": "1"}, {"a": 0.5})),
    *({"configuration": {"sizes": sizes}} for sizes in ({"a" * 65: 1}, dict.fromkeys(MANY, 1))),
)
WRONG_FINISHED = (
    *({"temperature": temperature} for temperature in ("70", True, -1, 202)),
    *({"arrival": arrival} for arrival in (float("nan"), float("inf"))),
    *({"drafts": 2**53 + 1}, {"accepted_tokens": -1}, {"outcome": "lost"}, {"ending": "sad"}),
    *({"bits": None}, {"prompt_tokens": None}, {"adapter": "a" * 257}),
    {"accepted_tokens": 61},  # more than drafted
)
WRONG_REPORT = (
    *(cell(temperature=temperature) for temperature in ("hot", -1, 202, 7.5)),
    *(cell(prompt=65), cell(prompt=-1), cell(bits=-1), cell(bits=None), cell(adapter="a" * 257)),
    *(cell(numbers=numbers) for numbers in ([], [0] * 5, [-1, *WARM[1:]], ["1", *WARM[1:]])),
    cell(numbers=[0] * 2057),  # of drafts of more than 1,024 tokens
    cell(numbers=[*WARM, 0]),  # a number too many
    cell(numbers=[0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0]),  # two drafts, of which three came back
    cell(numbers=[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]),  # a draft of 1 token, 2 of them accepted
    cell(numbers=[0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 2]),  # drafts of 1 and of 2, 2 accepted of each
    {"requests": [[70, 0, 7, None]]},
    {"requests": [[70, 0, 7, None, WARM, 1]]},
    *(steps(decodes=decodes) for decodes in (-1, True, 1.5)),
    *(steps(context=21), steps(is_mixed=1), steps(request_seconds=-0.5), steps(steps=1.5)),
    {"steps": [[8, 5, False, [*STEPS.values(), 1]]]},
    {"steps": [[8, [*STEPS.values()]]]},
    {"requests": [CELLS[0]] * (MAX_ITEMS + 1)},
    {"steps": STEP_CELLS * (MAX_ITEMS + 1)},
    {"end": {**END, "at": None}},
    {"end": {**END, "lost": 1.5}},
    {"end": {**END, "endings": {"sad": [0] * 8}}},
    {"end": {**END, "endings": {"loop": [0] * 7}}},
    {"end": {**END, "endings": {"loop": [1, 0, 0, 0, 0, 1, 2, 3]}}},  # more than drafted
    {"end": {name: END[name] for name in END if name != "endings"}},
    finishing({name: FINISHED[name] for name in FINISHED if name != "arrival"}),
    finishing({**FINISHED, "new": 1}),
    finishing(*[FINISHED] * (MAX_ITEMS + 1)),
    {"finished": FINISHED},
)


@pytest.mark.parametrize(
    "parts",
    [
        *({"hello": {**HELLO, **wrong}} for wrong in WRONG_HELLO),
        *({"report": finishing(FINISHED, {**FINISHED, **wrong})} for wrong in WRONG_FINISHED),
        *({"report": wrong} for wrong in WRONG_REPORT),
    ],
)
def test_a_field_out_of_its_type_or_range_refuses_the_packet(parts):
    """Any process may write to the socket."""
    with pytest.raises(Malformed):
        read_packet(packet(**parts))


@pytest.mark.parametrize(
    "report", [cell(), steps(), {}, {"end": END}, finishing(*[FINISHED] * MAX_ITEMS)]
)
def test_what_the_wrong_packets_were_made_from_is_read(report):
    """Else they might be refused for another reason."""
    assert read_packet(packet(hello={**HELLO, "server": None}, report=report)).report is not None


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


@pytest.mark.parametrize(
    "report",
    [
        b'"finished":[' + b"{}," * 20_000 + b"{}]",
        b'"finished":[' + b"[]," * 20_000 + b"[]]",
        b'"steps":[' + b"[]," * 20_000 + b"[]]",
        b'"requests":[' + b"[]," * 20_000 + b"[]]",
        b'"requests":[[70,0,7,null,[' + b'"",' * 20_000 + b"7]]]",
    ],
)
def test_what_is_wrong_with_a_packet_is_not_all_collected(report):
    """That would take 150 ms for a packet of the largest size."""
    text = b'{"v":4,"report":{%s,"end":7}}' % report

    with pytest.raises(Malformed):
        read_packet(text)
    with pytest.raises(ValidationError) as wrong:
        TypeAdapter(messages._Packet).validate_json(text, strict=True)

    assert wrong.value.error_count() < 20


@pytest.mark.parametrize(
    "text",
    [
        b'{"v": 5, "hello": {"plugin": "1.4", "state": 7}, "report": 5}',
        b'{"v": 0}',
        *(packet(version, hello=HELLO, report=REPORT) for version in (1, 2, 3, 5)),
    ],
)
def test_a_packet_of_another_version_is_known_as_such(text):
    """The page then says to regenerate the plug-in."""
    assert read_packet(text) == Unreadable(json.loads(text)["v"])


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b'{"v": "4"}', b'{"v": 4, "hello": 1}', b'{"v": -1}', b"\xff", b"[" * 999],
)
def test_what_is_no_packet_of_any_version_is_malformed(text):
    """It is none of a plug-in, so it is counted as malformed."""
    with pytest.raises(Malformed):
        read_packet(text)


def test_the_packets_here_are_of_the_version_that_is_read():
    """The others only show what is refused."""
    assert json.loads(packet())["v"] == VERSION


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
