"""Logging: JSON lines for machines, a readable format for terminals.

A lasting fault gets one line per change. Everything, including what libraries log through the
standard library (aiohttp, asyncio), goes through one handler, which removes credentials from URLs
in the finished line and limits the lines per minute.
"""

import logging
import re
from collections.abc import Sequence
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_BEFORE_HOST = re.compile(r"(?:(?<=://)|^(?![A-Za-z0-9+.-]+://)).*@", re.ASCII | re.DOTALL)
_QUERY = re.compile(r"([?#]).*", re.DOTALL)
_USER_INFORMATION = re.compile(r"(?<=://)\S*@")
_MOST_LINES = 240  # per minute
# Per fault. Reasons should be few and fixed; this limits the log if they are not.
_MAX_REASONS = 16

# Adds the fields that every line has, even one from a library that does not use structlog.
_EVERY_LINE: Final[Sequence[Processor]] = (
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
)

Logger = FilteringBoundLogger  # what ``structlog.get_logger`` returns


def redacted(url: str) -> str:
    """A URL, valid or not, with ``***`` for user information, query and fragment.

    In doubt, it removes too much.
    """
    return _QUERY.sub(r"\1***", _BEFORE_HOST.sub("***@", url))


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Removes user information from everything in a line that looks like a URL."""

    def format(self, record: logging.LogRecord) -> str:
        return _USER_INFORMATION.sub("***@", super().format(record))


class _AtMost(logging.Filter):
    """Passes at most ``_MOST_LINES`` lines per minute.

    If a minute had more, the first line of the next one says how many were left out.
    """

    _minute = 0
    _lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        minute = int(record.created // 60)
        if minute != self._minute:
            left_out = self._lines - _MOST_LINES
            self._minute = minute
            self._lines = 0
            if left_out > 0:
                log = structlog.get_logger("sidecar.log")
                log.warning("log lines left out", lines=left_out, most_per_minute=_MOST_LINES)

        self._lines += 1
        return self._lines <= _MOST_LINES


# ``format`` is the settings' name.
def configure_logging(stream: TextIO, *, level: str, format: str) -> None:  # noqa: A002 - see above
    """Sends every log line of the process to ``stream``; a later call replaces an earlier one.

    The options are those of ``log.*``: ``level`` is debug, info, warning or error; ``format`` is
    json, console or auto: JSON unless ``stream`` is a terminal. A JSON line has ``ts`` (UTC, ISO
    8601), ``level``, ``event``, ``logger`` and the event's own fields.
    """
    console = format == "console" or (format == "auto" and stream.isatty())
    json = (_ordered, structlog.processors.JSONRenderer(default=str))
    finishing: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        *((_console(stream),) if console else json),
    ]
    handler = logging.StreamHandler(stream)
    handler.addFilter(_AtMost())
    handler.setFormatter(_Formatter(foreign_pre_chain=_EVERY_LINE, processors=finishing))
    # Otherwise a line that cannot be formatted or written goes to stderr as it is, credentials
    # included.
    logging.raiseExceptions = False
    logging.getLogger().handlers = [handler]
    set_log_level(level)

    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_EVERY_LINE,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def set_log_level(level: str) -> None:
    """Sets the least severe level that is logged from now on."""
    logging.getLogger().setLevel(level.upper())


def _console(stream: TextIO) -> Processor:
    # structlog's rich tracebacks show local variables.
    plain = structlog.dev.plain_traceback
    return structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), timestamp_key="ts", exception_formatter=plain, pad_event_to=0
    )


def _ordered(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    first = {key: event.pop(key) for key in ("ts", "level", "event", "logger") if key in event}
    return first | dict(event)


class StateLog:
    """Logs when a fault begins, when its reason is new, and when it is over; nothing in between.

    ``key`` names what is at fault; there are only a few keys.
    """

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._reasons: dict[str, set[str]] = {}  # the reasons logged so far, by fault

    def fault(self, key: str, event: str, *, reason: str = "", **fields: Any) -> None:
        """Logs an occurrence if ``reason`` is new in this fault.

        It is an error with ``exc_info``, otherwise a warning.
        """
        known = self._reasons.setdefault(key, set())
        if reason in known or len(known) >= _MAX_REASONS:
            return
        known.add(reason)
        log = self._log.error if "exc_info" in fields else self._log.warning
        log(event, **({"reason": reason} if reason else {}), **fields)

    def clear(self, key: str, event: str, **fields: Any) -> None:
        """Ends the fault, if there is one, and logs that."""
        if self._reasons.pop(key, None) is not None:
            self._log.info(event, **fields)
