"""The errors that leave the package that raises them.

Errors that stay inside a package are defined there. Callers distinguish them by class, never by
message. ``reason`` is the label value under which a failure is counted
(``specdec_scrape_errors_total{reason=...}`` and others), so it is short, fixed and free of data.
"""

from typing import ClassVar


class SpecDecError(Exception):
    """The root of all errors raised on purpose.

    A command that ends with one prints it and exits with ``exit_code``.
    """

    exit_code: ClassVar[int] = 1


class SettingsError(SpecDecError):
    """The settings are invalid.

    ``messages`` has one line per problem: key, value and what is expected.
    """

    exit_code = 2

    def __init__(self, messages: list[str]) -> None:
        super().__init__("\n".join(messages))
        self.messages = messages


class InputError(SpecDecError):
    """A command cannot use a file or an argument.

    The message names it, the line and the reason, and quotes none of its content.
    """

    exit_code = 2


class MeasurementError(SpecDecError):
    """A server cannot be measured; the message names its address and the reason."""


class UndecidedError(MeasurementError):
    """Whether two servers differ cannot be decided, since one of them cannot be measured."""

    exit_code = 3


class ListenError(SpecDecError):
    """An address cannot be bound; the message names it, the reason and the setting."""


class ScrapeError(SpecDecError):
    """One poll of vLLM's ``/metrics`` returned no usable page.

    ``remedy`` says what an operator should check.
    """

    reason: ClassVar[str] = "scrape"
    remedy: str = ""
    has_answer: ClassVar[bool] = False
    """Whether something at the address answers requests: if so, vLLM may be serving."""

    @classmethod
    def reasons(cls) -> list[str]:
        """The reasons of all subclasses without subclasses of their own, sorted.

        A class without subclasses has only its own reason.
        """
        below = sorted(reason for kind in cls.__subclasses__() for reason in kind.reasons())
        return below or [cls.reason]


class Unreachable(ScrapeError):
    """No connection: vLLM is not up, or the address is wrong."""

    reason = "unreachable"
    remedy = "Is vLLM running, and is this its address? The sidecar keeps trying."


class TimedOut(ScrapeError):
    """The page did not arrive completely in time."""

    reason = "timeout"
    remedy = "vLLM is overloaded or stuck; scrape_timeout sets how long to wait."


class BadStatus(ScrapeError):
    """The response has a ``status`` other than 200."""

    reason = "status"
    has_answer = True

    def __init__(self, status: int, location: str = "") -> None:
        """``location`` is where a redirect points, without credentials."""
        super().__init__(f"status {status}" + (f", to {location}" if location else ""))
        self.status = status
        self.remedy = _status_remedy(status)


def _status_remedy(status: int) -> str:
    match status:
        case 401 | 403:
            return (
                "It asks for credentials: put them into the URL, http://USER:PASSWORD@HOST:PORT, or"
                " use vLLM's own address, which asks for none."
            )
        case 404 | 405 | 410:
            return "Is this vLLM's own address? A gateway may hide /metrics."
        case 502 | 503 | 504:
            return (
                "What is in front of vLLM cannot reach it, or vLLM is still starting. The sidecar"
                " keeps trying."
            )
        case _ if 300 <= status < 400:
            return "The sidecar follows no redirects: set vllm_url to vLLM's own address."
        case _ if status >= 500:
            return (
                "vLLM, or what is in front of it, failed to render its metrics: the reason is in"
                " its log. One cause is a PROMETHEUS_MULTIPROC_DIR that vLLM cannot read."
            )
        case _:
            return "Is this vLLM's own address? If it serves TLS there, use https."


class TlsRefused(ScrapeError):
    """The server ended a new TLS connection without an answer, or with an alert.

    A server does so if it asks for a client certificate and gets none, or one from an authority
    that it does not trust. vLLM's own closes the connection before its alert is sent; proxies send
    theirs.
    """

    reason = "tls_refused"
    remedy = (
        "If vLLM asks for a client certificate (--ssl-cert-reqs 2), set vllm_cert_file and"
        " vllm_key_file to one that its --ssl-ca-certs has signed. Otherwise, something between"
        " the sidecar and vLLM ends TLS connections."
    )
    has_answer = True


class Interrupted(ScrapeError):
    """The response was cut off, or its HTTP framing is invalid."""

    reason = "interrupted"
    remedy = "Something between the sidecar and vLLM cuts off responses."
    has_answer = True


class NotAnswered(Interrupted):
    """The connection was closed before any of the response had arrived."""

    remedy = (
        "If vLLM serves TLS there (--ssl-certfile), use https. Otherwise, something between the"
        " sidecar and vLLM cuts off responses."
    )


class CountersFell(ScrapeError):
    """All counters fell since the last page; the next pages show why (``engine.restarts``)."""

    reason = "counters_fell"
    remedy = "The sidecar waits for two more polls."
    has_answer = True


class AnotherServer(ScrapeError):
    """The page comes from another server than the last one: several servers share the address."""

    reason = "another_server"
    remedy = "Give each vLLM server its own sidecar."
    has_answer = True


class PageError(ScrapeError):
    """The page arrived, but is unusable."""

    reason = "page"
    has_answer = True


class PageTooLarge(PageError):
    """More bytes, lines or series than the limits allow."""

    reason = "too_large"
    remedy = "The limits are the settings limits.page_bytes and limits.series."


class EmptyPage(PageError):
    """The page has nothing on it."""

    reason = "empty_page"
    remedy = (
        "vLLM keeps its metrics in files, and there are none: the directory in its environment"
        " variable PROMETHEUS_MULTIPROC_DIR is missing or unreadable, or was emptied. With one API"
        " server, unset the variable."
    )


class NotAnExposition(PageError):
    """The body is not Prometheus text: HTML, JSON, compressed or binary data."""

    reason = "not_an_exposition"
    remedy = "This is not a metrics page. Is this vLLM's own address?"


class TruncatedPage(PageError):
    """The page does not end with a newline, so its last value may be truncated."""

    reason = "truncated"
    remedy = "Something between the sidecar and vLLM cuts off the page."


class NoVllmMetrics(PageError):
    """The page is a valid exposition without any of vLLM's metrics."""

    reason = "no_vllm_metrics"
    remedy = "These are another program's metrics. Is this vLLM's own address?"


class NoLogStats(PageError):
    """vLLM's API server serves the page, but without vLLM's metrics (--disable-log-stats)."""

    reason = "no_log_stats"
    remedy = (
        "vLLM runs with --disable-log-stats: it serves requests, but counts nothing. Start it"
        " without this option."
    )
