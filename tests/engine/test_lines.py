"""The grammar: what a line means, what is skipped, what is too much."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.errors import PageTooLarge
from tests.engine.engine_tools import ENGINE, NAME, judged, page_reader, values


def read(*lines):
    return judged("".join(line + "\n" for line in lines).encode())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, 1.5) for text in (
            " 1.5", "{} 1.5", "   1.5   ", '{engine="0"} 1.5', '{engine="0",} 1.5', '{ engine = "0" , a="b" } 1.5',
            '{engine="0"}\t1.5', " 1.5 1712345678901", " 1.5 -5", ' 1.5 # {trace_id="a b } 7"} 0.67 1712345678.5',
            " 1.5 1712345678.25 # {} 0.67",
        )),
        (" 1e+06", 1e6), (" 1.79516709553e+09", 1.79516709553e9), (" -3", -3.0), (f'{{a="{"x" * 512}"}} 1', 1.0),
    ],
)  # fmt: skip
def test_the_value_of_a_valid_line(text, value):
    page = read(NAME + text)
    assert (page.values, page.malformed) == ([value], 0)


@pytest.mark.parametrize(
    "text",
    [
        " 0x", " 1_0", " 1 2 3", " 1,5", " ", "", "-1", " one", '{engine="0" 1', '{engine="0"}', '{engine="0"} ',
        "{engine=0} 1", '{engine="0} 1', "{,} 1", '{="0"} 1', '{9a="0"} 1', '{a="0"b="1"} 1', f'{{a="{"x" * 513}"}} 1',
        " \uff11",  # a full-width digit, which Python's float() takes
        " 1\r",
    ],
)  # fmt: skip
def test_a_malformed_line_is_counted_and_skipped(text):
    page = read(NAME + text)
    assert (page.values, page.malformed) == ([], 1)


@pytest.mark.parametrize(("text", "value"), [("+Inf", "inf"), ("-Inf", "-inf"), ("Inf", "inf"), ("NaN", "nan")])
def test_infinities_and_nan_are_values(text, value):
    assert list(map(repr, read(f"{NAME} {text}").values)) == [value]


UNCHANGED = (
    "a}b", "a,b=c", "a b  c", "# TYPE x counter", "{a}", "", "\u00e9\u65e5\U0001f600", "\u00a0", "%s{0}",
    "\x0b\x0c\x1c\x85\u2028",
)  # fmt: skip
ESCAPED = ((r"a\"b", 'a"b'), (r"a\nb", "a\nb"), (r"a\\nb", r"a\nb"), (r"a\\", "a\\"), (r"\"} 7", '"} 7'))


@pytest.mark.parametrize(("written", "meant"), [*((text, text) for text in UNCHANGED), *ESCAPED])
def test_label_values_are_unescaped_and_otherwise_unchanged(written, meant):
    page = read(f'{NAME}{{model_name="{written}",engine="0"}} 1')
    assert page.series[0].labels == (("model_name", meant), ("engine", "0"))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text(st.characters(codec="utf-8"))), unique_by=lambda p: p[0]))
@example([("a", "\\"), ("b", '"}')])
def test_escaped_labels_come_back(pairs):
    def escape(value):
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    text = ",".join(f'{name}="{escape(value)}"' for name, value in pairs)
    body = f"# TYPE {NAME} gauge\n{NAME}{{{text}}} 1\n"
    reader = page_reader()
    for _ in range(2):
        page = reader.read(body.encode())
        assert values(page) == {(NAME, tuple(pairs)): 1.0}


def test_a_repeated_series_is_counted_as_malformed_and_its_first_value_stays():
    body = f'# TYPE {NAME} gauge\n{NAME}{{{ENGINE}}} 1\n{NAME}{{{ENGINE}}} 2\n{NAME}{{{ENGINE},pid="2"}} 3\n'
    reader = page_reader()
    for _ in range(3):
        page = reader.read(body.encode())
        assert page.values == [1.0, 3.0]
        assert page.malformed == 1


def test_lines_that_are_not_wanted_are_not_checked():
    page = read('{"my.metric", a="b"} 1', "broken{ 1", "vllm:broken{ 1", "\u00e9 1", f"{NAME} 1", f"{NAME}_x one")
    assert (page.values, page.malformed) == ([1.0], 0)


@pytest.mark.parametrize(
    "skipped",
    [
        b'{engine="\xff"} 1',
        b'{model_name="%s"} 7' % (b"x" * 16 * 1024),
        b"{%s} 7" % b",".join(b'l%d="v"' % number for number in range(65)),
    ],
    ids=["no UTF-8", "a line too long", "too many labels"],
)
def test_a_line_past_a_limit_is_skipped_alone(skipped):
    page = judged(NAME.encode() + skipped + b"\n" + NAME.encode() + b'{engine="1"} 2\n')
    assert (page.values, page.malformed) == ([2.0], 1)


def test_lines_within_the_limits_are_read():
    labels = ",".join(f'l{number}="{"x" * 200}"' for number in range(64))
    assert read(f"{NAME}{{{labels}}} 7").values == [7.0]


def test_a_page_past_a_limit_is_refused():
    body = b"".join(b'%s{engine="%d"} 1\n' % (NAME.encode(), i) for i in range(100))
    assert len(page_reader(series=100, page_bytes=len(body)).read(body).values) == 100
    for limits in ({"series": 99}, {"page_bytes": len(body) - 1}):
        with pytest.raises(PageTooLarge):
            page_reader(**limits).read(body)
    assert len(page_reader().read(b"up 1\n" * 99_800 + body).values) == 100
    with pytest.raises(PageTooLarge, match="100000 lines"):
        page_reader().read(b"\n" * 100_000)
