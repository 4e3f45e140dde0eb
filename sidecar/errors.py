"""Every error this program raises on purpose, on one page.

Callers tell them apart by class, never by message. ``reason`` is the label value under which a failure is
counted (``specdec_scrape_errors_total{reason=...}`` and its kin), so it is short, fixed and free of data.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class SpecDecError(Exception):
    """The root of all errors raised on purpose."""


class SettingsError(SpecDecError):
    """The settings can't be used; ``faults`` has one line a fault: key, value, remedy."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class ListenError(SpecDecError):
    """An address or a socket to listen on can't be had; ``variable`` is the one to set, ``place`` what it says now."""

    def __init__(self, variable: str, place: object, problem: str) -> None:
        super().__init__(f"can't listen at {place}: {problem}; set {variable}")
        self.variable = variable
        self.place = str(place)
        self.problem = problem


@contextmanager
def listening(variable: str, place: object) -> Iterator[None]:
    """Turns what the system refuses while something begins to listen into one that names the setting.

    Raises:
        ListenError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise ListenError(variable, place, error.strerror or str(error)) from error


class ScrapeError(SpecDecError):
    """One poll of vLLM's ``/metrics`` gave no usable page; ``remedy`` is what to look at, for a person."""

    reason: ClassVar[str] = "scrape"
    remedy: ClassVar[str] = ""


class Unreachable(ScrapeError):
    """No connection: vLLM is not up, or the address is wrong."""

    reason = "unreachable"
    remedy = "Is vLLM up, and is this its address? The sidecar keeps trying."


class TimedOut(ScrapeError):
    """The page did not arrive whole within the time allowed."""

    reason = "timeout"
    remedy = "vLLM is very busy or stuck; scrape_timeout sets how long to wait."


class BadStatus(ScrapeError):
    """The answer was not 200."""

    reason = "status"
    remedy = "Is this vLLM's own address, and not a gateway's that hides /metrics?"


class Interrupted(ScrapeError):
    """The answer broke off or broke HTTP's framing."""

    reason = "interrupted"
    remedy = "Something between here and vLLM cuts the answer off."


class PageError(ScrapeError):
    """The page arrived and can't be used."""

    reason = "page"


class PageTooLarge(PageError):
    """More bytes, a longer line, more labels or more series than the limits allow."""

    reason = "too_large"
    remedy = "limits.page_bytes and limits.series set what is read at most."


class NotAnExposition(PageError):
    """The body is not Prometheus text: HTML, JSON, compressed or binary data."""

    reason = "not_an_exposition"
    remedy = "This is no metrics page; is it vLLM's own address?"


class TruncatedPage(PageError):
    """The page does not end at the end of a line, so its last value can't be trusted."""

    reason = "truncated"
    remedy = "Something between here and vLLM cuts the page off."


class NoVllmMetrics(PageError):
    """A sound exposition, but of something else than vLLM."""

    reason = "no_vllm_metrics"
    remedy = "This is another program's page; is it vLLM's own address?"


class AnotherServer(ScrapeError):
    """The page is an older process's than the last one: several servers answer at one address."""

    reason = "another_server"
    remedy = "Give each vLLM server a sidecar, or a target, of its own."


class Refusal(SpecDecError):
    """An HTTP message that the proxy does not forward; the text is fixed and quotes nothing of it.

    A request is refused with the status of ``reason`` in the proxy's ``REFUSALS``. A response counts as invalid.
    """

    def __init__(self, message: str, reason: str = "bad_request") -> None:
        super().__init__(message)
        self.reason = reason


class ConnectFailed(SpecDecError):
    """The proxy has no connection to the upstream; ``kind`` is a key of its ``UPSTREAM_ERRORS``."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
