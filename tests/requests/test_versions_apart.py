"""A plug-in and a sidecar of different versions: what one does not know is absent, never 0."""

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.analysis.split.growth import Growth
from sidecar.analysis.split.life import Life
from sidecar.requests.messages import read_packet
from sidecar.requests.tables import Table
from sidecar.requests.tally import Tally
from tests.requests.packets import (
    END,
    FINISHED,
    HELLO,
    REPORT_VERSION_2,
    TABLES,
    packet,
)

TOTAL = Tally(
    stopped=3, length=2, aborted=3, error=5, drafts=10, draft_tokens=30, accepted_tokens=20
)
NEW_FIELDS = st.dictionaries(
    st.sampled_from(["x_backend", "v4", "ratio"]),
    st.none() | st.booleans() | st.integers() | st.lists(st.text(max_size=3), max_size=3),
)
NEW_TABLES = st.dictionaries(
    st.sampled_from(["x_backend", "x_tenant", "x_zone"]),
    st.lists(st.builds(dict, key=st.integers() | st.text(max_size=3)), max_size=3),
)
LACKING = st.sets(st.sampled_from([*TABLES]))


def life_of(*packets):
    """A life that has received packets, which must be readable."""
    life = None
    for text in packets:
        read = read_packet(text)
        if read.hello is not None:
            life = life or Life(read.hello, Growth(), from_start=True)
            life.hello = read.hello
        if read.report is not None:
            assert life.receive(read.report, room=1_000_000, request_room=1_000_000) == 0
    return life


def extended(value, fields):
    """Every object in a packet with more fields."""
    if isinstance(value, dict):
        return {**fields, **{name: extended(one, fields) for name, one in value.items()}}
    return [extended(one, fields) for one in value] if isinstance(value, list) else value


@settings(max_examples=50)
@given(fields=NEW_FIELDS, tables=NEW_TABLES, lacking=LACKING)
def test_a_later_plugin_with_more_tables_and_fewer_is_read_for_what_is_known(
    fields, tables, lacking
):
    """Neither is a reason to refuse a packet, and no table is 0 for being absent."""
    kept = {name: rows for name, rows in deepcopy(TABLES).items() if name not in lacking}
    hello = {**HELLO, "tables": [*kept, *tables]}
    report = {"tables": kept, "finished": [FINISHED], "end": END}
    later = extended({"hello": hello, "report": report}, fields)
    later["report"]["tables"].update(tables)
    hello, report = {"hello": later["hello"]}, {"report": later["report"]}

    life = life_of(packet(**hello), packet(**report))

    assert life.hello.tables == {table for table in Table if table in kept}
    assert life.latest.total == TOTAL
    for table in Table:
        assert (table in life.latest.tables) is (table in kept), table


@settings(max_examples=50)
@given(lacking=LACKING)
def test_an_earlier_plugin_of_version_2_has_no_more_than_it_sends(lacking):
    """It cannot name its tables, so what it does not send is unknown."""
    kept = {
        name: rows for name, rows in REPORT_VERSION_2.items() if name not in {*lacking, "ending"}
    }
    hello = {name: value for name, value in HELLO.items() if name != "tables"}

    life = life_of(packet(2, hello=hello), packet(2, report=kept))

    assert life.hello.tables is None
    assert life.latest.total == TOTAL
    assert Table.ENDING not in life.latest.tables
    assert life.latest.tables.keys() == {table for table in Table if table in kept}
