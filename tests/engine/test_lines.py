"""The grammar: what a line means, what is skipped, what is too much."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.errors import PageTooLarge
from tests.engine.engine_tools import ENGINE, NAME, judged, page_reader, values


def read(*lines):
    return judged("".join(line + "\n" for line in lines).encode(errors="surrogateescape"))


def labels(number, value):
    return "{" + ",".join(f'l{name}="{value}"' for name in range(number)) + "}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, 1.5) for text in (
            " 1.5", "{} 1.5", "   1.5   ", '{engine="0"} 1.5', '{engine="0",} 1.5',
            '{ engine = "0" , a="b" } 1.5', '{engine="0"}\t1.5', " 1.5 1712345678901", " 1.5 -5",
            ' 1.5 # {trace_id="a b } 7"} 0.67 1712345678.5', " 1.5 1712345678.25 # {} 0.67",
        )),
        (" 1e+06", 1e6), (" 1.79516709553e+09", 1.79516709553e9), (" -3", -3.0),
        (f'{{a="{"x" * 512}"}} 1', 1.0),
        (" +Inf", math.inf), (" -Inf", -math.inf), (" Inf", math.inf), (" NaN", math.nan),
        pytest.param(labels(64, "x" * 200) + " 7", 7.0, id="64 labels"),
    ],
)  # fmt: skip
def test_the_value_of_a_valid_line(text, value):
    """In every form that the text format and OpenMetrics allow."""
    page = read(NAME + text)
    assert (repr(page.values), page.malformed) == (repr([value]), 0)


@pytest.mark.parametrize(
    "text",
    [
        " 0x", " 1_0", " 1 2 3", " 1,5", " ", "", "-1", " one",
        '{engine="0" 1', '{engine="0"}', '{engine="0"} ', "{engine=0} 1", '{engine="0} 1', "{,} 1",
        '{="0"} 1', '{9a="0"} 1', '{a="0"b="1"} 1', f'{{a="{"x" * 513}"}} 1',
        " \uff11",  # a full-width digit, which Python's float() takes
        " 1\r",
        pytest.param('{engine="\udcff"} 1', id="no UTF-8"),
        pytest.param(" 1" + " " * 16 * 1024, id="a line too long"),
        pytest.param(labels(65, "v") + " 1", id="too many labels"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_counted_and_skipped_alone(text):
    """The line after it is read."""
    page = read(NAME + text, f'{NAME}{{engine="1"}} 2')
    assert (page.values, page.malformed) == ([2.0], 1)


_CHARACTERS = st.one_of(
    st.sampled_from('\\"\n{},=# n\x0b\x0c\x1c\x85\xa0\u2028'), st.characters(codec="utf-8")
)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.text(_CHARACTERS)), unique_by=lambda pair: pair[0]
    )
)
@example([("a", "\\"), ("b", '"} 7'), ("c", "\\n")])
def test_escaped_labels_come_back(pairs):
    """Whatever characters they hold, at the first reading and by the remembered layout."""

    def escape(value):
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    text = ",".join(f'{name}="{escape(value)}"' for name, value in pairs)
    body = f"# TYPE {NAME} gauge\n{NAME}{{{text}}} 1\n"
    reader = page_reader()
    for _ in range(2):
        page = reader.read(body.encode())
        assert values(page) == {(NAME, tuple(pairs)): 1.0}


def test_a_repeated_series_is_counted_as_malformed_and_its_first_value_stays():
    body = (
        f"# TYPE {NAME} gauge\n{NAME}{{{ENGINE}}} 1\n{NAME}{{{ENGINE}}}"
        f' 2\n{NAME}{{{ENGINE},pid="2"}} 3\n'
    )
    reader = page_reader()
    for _ in range(3):
        page = reader.read(body.encode())
        assert page.values == [1.0, 3.0]
        assert page.malformed == 1


def test_lines_that_are_not_wanted_are_not_checked():
    """A page has thousands of them."""
    page = read(
        '{"my.metric", a="b"} 1',
        "broken{ 1",
        "vllm:broken{ 1",
        "\u00e9 1",
        f"{NAME} 1",
        f"{NAME}_x one",
    )
    assert (page.values, page.malformed) == ([1.0], 0)


def test_a_page_past_a_limit_is_refused():
    body = b"".join(b'%s{engine="%d"} 1\n' % (NAME.encode(), i) for i in range(100))
    assert len(page_reader(series=100, page_bytes=len(body)).read(body).values) == 100
    for limits in ({"series": 99}, {"page_bytes": len(body) - 1}):
        with pytest.raises(PageTooLarge):
            page_reader(**limits).read(body)
    assert len(page_reader().read(b"up 1\n" * 99_800 + body).values) == 100
    with pytest.raises(PageTooLarge, match="100000 lines"):
        page_reader().read(b"#\n" * 100_001)
