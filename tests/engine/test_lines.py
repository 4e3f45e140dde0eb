"""The grammar: what a line means, what is skipped, what makes a page unusable."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.errors import PageTooLarge
from tests.engine.engine_tools import judged, page_reader, values

NAME = "vllm:num_requests_running"
ENGINE = 'model_name="m",engine="0"'
SOUND = b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 1\n" * 1 + b"# HELP a b\n" * 40


def read(*lines, **limits):
    """Lines in a page that has enough sound ones to be one."""
    return judged(SOUND + "".join(line + "\n" for line in lines).encode(), **limits)


def found(*lines, **limits):
    page = read(*lines, **limits)
    return dict(zip(page.series, page.values, strict=True)), page.malformed


def labels_of(line):
    page = read(line)
    assert page.malformed == 0
    return dict(page.series[-1].labels)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{engine="0"} 1.5', 1.5),
        (" 1.5", 1.5),
        ("{} 1.5", 1.5),
        ('{engine="0",} 1.5', 1.5),
        ('{ engine = "0" , a="b" } 1.5', 1.5),
        ('{engine="0"}\t1.5', 1.5),
        (" 1.5 1712345678901", 1.5),
        (" 1.5 -5", 1.5),
        ("   1.5   ", 1.5),
        (' 1.5 # {trace_id="a b } 7"} 0.67 1712345678.5', 1.5),
        (" 1.5 1712345678.25 # {} 0.67", 1.5),
        (" 1e+06", 1e6),
        (" 1.79516709553e+09", 1.79516709553e9),
        (" -3", -3.0),
        (" 0x", None),
        (" 1_0", None),
        (" 1 2 3", None),
        (" 1,5", None),
        (" ", None),
        ("", None),
        ("1", None),
        (" one", None),
        ('{engine="0" 1', None),
        ('{engine="0"}', None),
        ('{engine="0"} ', None),
        ("{engine=0} 1", None),
        ('{engine="0} 1', None),
        ("{,} 1", None),
        ('{="0"} 1', None),
        ('{9a="0"} 1', None),
        ('{a="0"b="1"} 1', None),
        (" \uff11", None),  # a full-width digit, which Python's float() takes
        (" 1\r", None),
    ],
)
def test_value_of_a_line(text, value):
    page = read(NAME + text)
    if value is None:
        assert page.values[1:] == []
        assert page.malformed == 1
    else:
        assert page.values[1:] == [value]
        assert page.malformed == 0


@pytest.mark.parametrize(("text", "value"), [("+Inf", "inf"), ("-Inf", "-inf"), ("Inf", "inf"), ("NaN", "nan")])
def test_values_that_are_no_numbers(text, value):
    assert list(map(repr, read(f"{NAME} {text}").values[1:])) == [value]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("a}b", "a}b"),
        (r"a\"b", 'a"b'),
        (r"a\nb", "a\nb"),
        (r"a\\nb", r"a\nb"),
        (r"a\\", "a\\"),
        ("a,b=c", "a,b=c"),
        ("a b  c", "a b  c"),
        ("# TYPE x counter", "# TYPE x counter"),
        ("{a}", "{a}"),
        (r"\"} 7", '"} 7'),
        ("", ""),
        ("\u00e9\u65e5\U0001f600", "\u00e9\u65e5\U0001f600"),
        ("\u00a0", "\u00a0"),
        ("\x0b\x0c\x1c\x85\u2028", "\x0b\x0c\x1c\x85\u2028"),
        ("%s{0}", "%s{0}"),
    ],
)
def test_label_values(written, meant):
    assert labels_of(f'{NAME}{{model_name="{written}",engine="0"}} 1') == {"model_name": meant, "engine": "0"}


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


def test_a_series_that_comes_twice_is_counted_and_the_first_stays():
    body = f'# TYPE {NAME} gauge\n{NAME}{{{ENGINE}}} 1\n{NAME}{{{ENGINE}}} 2\n{NAME}{{{ENGINE},pid="2"}} 3\n'
    reader = page_reader()
    for _ in range(3):
        page = reader.read(body.encode())
        assert page.values == [1.0, 3.0]
        assert page.malformed == 1


def test_quoted_names_are_valid_and_not_vllms():
    page = read('{"my.metric", a="b"} 1', '{"my.metric"} 2')
    assert page.malformed == 0
    assert len(page.values) == 1


def test_invalid_utf8_skips_one_line():
    body = SOUND + NAME.encode() + b'{engine="\xff"} 1\n' + NAME.encode() + b'{engine="1"} 2\n'
    page = judged(body)
    assert page.values[1:] == [2.0]
    assert page.malformed == 1


def test_line_limit_skips_the_line_alone():
    long_line = f'{NAME}{{model_name="{"x" * 2000}"}} 7'
    series, malformed = found(long_line, f"{NAME} 1", line_bytes=1024)
    assert malformed == 1
    assert list(series.values()) == [1.0, 1.0]
    series, malformed = found(long_line, f"{NAME} 1", line_bytes=4096)
    assert malformed == 0
    assert list(series.values()) == [1.0, 7.0, 1.0]


def test_label_limit_skips_the_line_alone():
    def line(count):
        return f"{NAME}{{" + ",".join(f'l{i}="v"' for i in range(count)) + "} 7"

    assert found(line(5), labels=5)[1] == 0
    assert found(line(6), labels=5)[1] == 1


def test_series_limit_refuses_the_page():
    body = SOUND + b"".join(b'%s{engine="%d"} 1\n' % (NAME.encode(), i) for i in range(100))
    assert len(page_reader(series=101).read(body).values) == 101
    with pytest.raises(PageTooLarge):
        page_reader(series=100).read(body)


def test_wanted_series_behind_a_very_long_page_are_found():
    """The others do not count against the limit."""
    body = SOUND + b"".join(b'http_requests_total{handler="%d"} 1\n' % i for i in range(20_000))
    body += f"# TYPE {NAME} gauge\n{NAME}{{{ENGINE}}} 5\n".encode()
    reader = page_reader(series=10)
    for _ in range(3):
        assert reader.read(body).values == [1.0, 5.0]


def test_page_limit():
    body = SOUND
    assert page_reader(page_bytes=len(body)).read(body).values == [1.0]
    with pytest.raises(PageTooLarge):
        page_reader(page_bytes=len(body) - 1).read(body)
