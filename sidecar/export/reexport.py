"""vLLM's own series on the sidecar's page: an option for sites whose Prometheus cannot reach vLLM."""

import re
from typing import Final

from sidecar.engine.names import PREFIXES

_FAMILY: Final = re.compile(rf"^# HELP (?:{'|'.join(PREFIXES)}).*\n# TYPE .*\n(?:[^#\n].*\n)*".encode(), re.MULTILINE)
_EXEMPLAR: Final = re.compile(rb" # \{.*")  # the text format has none


def own_series(page: bytes, limit: int) -> bytes:
    """The families of vLLM itself on its page, unchanged except that exemplars are removed.

    ``limit`` bounds the number of series; a family is exported completely or not at all.
    """
    found: list[bytes] = []
    series = 0
    for family in _FAMILY.findall(page):
        size = family.count(b"\n") - 2
        if size and series + size <= limit:
            series += size
            found.append(_EXEMPLAR.sub(b"", family))
    return b"".join(found)
