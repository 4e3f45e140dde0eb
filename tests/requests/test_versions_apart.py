"""A plug-in and a sidecar of different versions: what one does not know is absent, never 0."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.requests.messages import Unreadable, read_packet
from tests.requests.packets import END, FINISHED, HELLO, REPORT, finishing, packet

NEW_FIELDS = st.dictionaries(
    st.sampled_from(["x_backend", "v5", "ratio"]),
    st.none() | st.booleans() | st.integers() | st.lists(st.text(max_size=3), max_size=3),
)
LACKING = st.sets(st.sampled_from(["requests", "steps", "finished", "end"]))
WHOLE = {**REPORT, **finishing(FINISHED)}


def extended(value, fields):
    """Every object in a packet with more fields; the endings' keys are names, and no fields."""
    if not isinstance(value, dict) or value is END["endings"]:
        return value
    return {**fields, **{name: extended(one, fields) for name, one in value.items()}}


@settings(max_examples=20)
@given(fields=NEW_FIELDS, lacking=LACKING)
def test_a_later_plugin_that_says_more_and_less_is_read_for_what_is_known(fields, lacking):
    """Neither is a reason to refuse a packet, and what it does not send is empty."""
    kept = {name: part for name, part in WHOLE.items() if name not in lacking}

    read = read_packet(packet(**extended({"hello": HELLO, "report": kept}, fields)))

    whole = read_packet(packet(hello=HELLO, report=WHOLE))
    assert read.hello == whole.hello
    for name, part in {"requests": "cells", "steps": "steps", "finished": "finished"}.items():
        assert getattr(read.report, part) == (
            () if name in lacking else getattr(whole.report, part)
        )
    assert read.report.end == (None if "end" in lacking else whole.report.end)


@pytest.mark.parametrize("version", [1, 2, 3, 5, 40])
async def test_another_format_is_refused_by_name(version, receiver, sink, connect, eventually):
    """However much a packet of it looks like one of ours, and as long as its sender is there."""
    other, ours = connect(), connect()
    other.send(packet(version, hello=HELLO, report=WHOLE))
    await eventually(lambda: sink.calls == [(Unreadable(version), 1)])
    ours.send(packet(hello=HELLO, report=WHOLE))
    await eventually(lambda: len(sink.reports) == 1)
    other.send(packet(version, report=WHOLE))
    await eventually(lambda: sink.calls.count((Unreadable(version), 1)) == 2)

    assert (len(sink.hellos), len(sink.reports), sink.drops) == (1, 1, {})
