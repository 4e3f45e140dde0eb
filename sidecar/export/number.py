"""Numbers as Prometheus writes them."""

from prometheus_client.utils import floatToGoString

_PLAIN = 1e6  # from here on Go writes an exponent where Python does not


def go_float(value: float) -> str:
    """A value as prometheus_client writes it, which is as Go does."""
    if -_PLAIN < value < _PLAIN:
        return repr(value)
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
    return text
