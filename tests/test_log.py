"""Log lines in both formats, what is kept out of them, and one line per change of a fault."""

import io
import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from sidecar.log import StateLog, configure_logging


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    root = logging.getLogger()
    handlers, level, raises = root.handlers, root.level, logging.raiseExceptions
    make_record = logging.getLogRecordFactory()
    yield
    root.handlers, logging.raiseExceptions = handlers, raises
    logging.setLogRecordFactory(make_record)
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def lines():
    """Everything logged since, as parsed JSON lines."""
    stream = io.StringIO()
    configure_logging(stream, level="info", format="auto")
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_time_level_event_and_fields(lines):
    """Also one of the standard library, and of values that JSON does not have."""
    odd = {"a": {1}, "b": {2: None}, "c": Path("/x")}  # as text what JSON lacks
    structlog.get_logger("sidecar.test").info("scrape failed", reason="timeout", seconds=1.5, **odd)
    logging.getLogger("aiohttp.server").warning("bad %s", "request")
    ours, of_the_standard_library = lines()
    assert datetime.fromisoformat(ours.pop("ts")).tzinfo == UTC
    fields = {"reason": "timeout", "seconds": 1.5, "a": "{1}", "b": {"2": None}, "c": "/x"}
    expected = {"level": "info", "event": "scrape failed", "logger": "sidecar.test"} | fields
    # in the order in which a reader looks for them
    assert list(ours.items()) == list(expected.items())
    expected = {"level": "warning", "event": "bad request", "logger": "aiohttp.server"}
    assert of_the_standard_library.items() >= expected.items()


@pytest.mark.parametrize("fmt", ["json", "console"])
@pytest.mark.parametrize("get_logger", [structlog.get_logger, logging.getLogger])
def test_an_exception_has_its_traceback_without_local_variables(fmt, get_logger):
    """These may hold a prompt or a password."""
    stream = Terminal()
    configure_logging(stream, level="info", format=fmt)
    prompt = f"{chr(104)}unter2"
    try:
        int(prompt.removeprefix("hunter") + "x")
    except ValueError:
        get_logger("sidecar.test").exception("failed")
    assert "ValueError: invalid literal" in stream.getvalue()
    assert (stream.getvalue().count("\n") == 1) == (fmt == "json")
    assert "hunter2" not in stream.getvalue()


def test_only_lines_of_the_level_and_above_are_logged_and_only_by_the_last_configuration(lines):
    stream = io.StringIO()
    configure_logging(stream, level="warning", format="json")
    for log in (structlog.get_logger("sidecar.test"), logging.getLogger("sidecar.test")):
        log.info("quiet")
        log.warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "loud",
        "loud",
    ]
    assert lines() == []


class Unspeakable:
    def __str__(self):
        raise RuntimeError("http://user:hunter2@host")

    __repr__ = __str__


def test_a_line_that_cannot_be_formatted_or_written_is_not_printed_elsewhere(capsys):
    """The logging module would print it to stderr, credentials included."""
    stream = io.StringIO()
    configure_logging(stream, level="info", format="json")
    log, url = structlog.get_logger("sidecar.test"), "http://user:hunter2@host"
    log.warning("odd", url=url, value=Unspeakable())
    logging.getLogger("aiohttp").warning("odd %d", url)
    assert stream.getvalue() == ""
    stream.close()
    log.warning("odd", url=url)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("stream", "fmt", "form"),
    [
        (io.StringIO, "auto", "json"),
        (Terminal, "auto", "coloured"),
        (io.StringIO, "console", "plain"),
        (Terminal, "json", "json"),
    ],
)
def test_the_format_follows_the_setting_or_else_the_terminal_and_only_terminals_get_colours(
    stream, fmt, form
):
    out = stream()
    configure_logging(out, level="info", format=fmt)
    structlog.get_logger("sidecar.test").info("hello", reason="x")
    line = out.getvalue()
    assert ("json" if line.startswith("{") else "coloured" if "\x1b[" in line else "plain") == form
    assert "hello" in line


URL = "http://me:hunter2@host:8000/v1"


@pytest.mark.parametrize("fmt", ["json", "console"])
@pytest.mark.parametrize(
    "fields",
    [
        {"url": URL},
        {"vllm_url": "http://me:hun/hunter2@host"},
        {"url": [URL]},
        {"error": ValueError(f"can't reach {URL}")},
        {"text": f"{URL} and http://you:hunter2@there"},
        {"target": {"vllm_url": URL}},
        {"targets": [{"at": URL}, (URL,)]},
    ],
)
def test_no_credential_of_a_url_is_logged(fmt, fields):
    """However deep in a field, in an exception, or in the text itself."""
    out = io.StringIO()
    configure_logging(out, level="info", format=fmt)
    structlog.get_logger("sidecar.test").info("polling", **fields)
    logging.getLogger("aiohttp").info("polling %s", URL)
    structlog.get_logger("sidecar.test").error(URL, exc_info=ValueError(URL))
    assert "polling" in out.getvalue()
    assert "hunter2" not in out.getvalue()


@pytest.fixture
def states(lines):
    return StateLog(structlog.get_logger("sidecar.test"))


def test_a_fault_is_logged_once_for_each_reason_and_its_end_once(states, lines):
    """A poll a second must not fill the log."""
    for reason in ("timeout", "timeout", "status", "timeout"):
        states.fault("a", "failed", reason=reason, url="http://host")
    states.fault("b", "failed")
    for _ in range(2):
        states.clear("a", "recovered", url="http://host")
    states.fault("b", "failed")
    states.fault("a", "failed", reason="timeout")
    assert [
        (line["level"], line["event"], line.get("reason"), line.get("url")) for line in lines()
    ] == [
        ("warning", "failed", "timeout", "http://host"),
        ("warning", "failed", "status", "http://host"),
        ("warning", "failed", None, None),
        ("info", "recovered", None, "http://host"),
        ("warning", "failed", "timeout", None),
    ]


def test_ever_new_reasons_do_not_fill_the_log(states, lines):
    """As of an error whose message has a number in it."""
    for number in range(1000):
        states.fault("a", "failed", reason=f"reason {number}")
    assert 0 < len(lines()) <= 16


def test_lines_past_the_limit_of_a_minute_are_left_out_and_counted(lines):
    log, now = structlog.get_logger("sidecar.test"), [6000.0]

    def record_of_now(*arguments, **more):
        record = logging.LogRecord(*arguments, **more)
        record.created = now[0]
        return record

    logging.setLogRecordFactory(record_of_now)
    for _ in range(1000):
        log.info("engine found")
    now[0] += 60
    log.info("engine gone")
    assert [line["event"] for line in lines()] == ["engine found"] * 240 + [
        "log lines left out",
        "engine gone",
    ]
    assert lines()[-2]["lines"] == 760
    now[0] += 60
    log.info("engine found")
    assert len(lines()) == 243
