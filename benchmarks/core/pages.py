"""A real page, and what it would look like with more engines or later."""

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "tests" / "data" / "pages"
_SAMPLE = re.compile(rb'^(vllm:[^{]*\{)engine="0"(.*)$', re.MULTILINE)
_VALUE = re.compile(rb" (\d+)\.0$", re.MULTILINE)


def real_page() -> bytes:
    """vLLM 0.32's page after a little traffic."""
    return (PAGES / "vllm-0.32.0.prom").read_bytes()


def with_engines(page: bytes, engines: int) -> bytes:
    """The page with every engine-labelled line repeated for each engine.

    The lines are grouped as a page must be.
    """

    def copies(match: re.Match[bytes]) -> bytes:
        return b"\n".join(
            match[1] + b'engine="%d"' % engine + match[2] for engine in range(engines)
        )

    return _SAMPLE.sub(copies, page)


def later(page: bytes, poll: int) -> bytes:
    """The page after ``poll`` more polls: every whole number has grown in proportion to itself."""
    return _VALUE.sub(lambda match: b" %d.0" % (int(match[1]) * (poll + 1)), page)
