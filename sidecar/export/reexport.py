"""vLLM's own series on the sidecar's page: an option for sites whose Prometheus cannot reach vLLM."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.engine.lines import Series, read_sample
from sidecar.engine.names import PREFIXES

_NAME: Final = rf"((?:{'|'.join(PREFIXES)})[a-zA-Z0-9_:]+)"
_HELP: Final = re.compile(rf"# HELP {_NAME} .*")
_TYPE: Final = re.compile(rf"# TYPE {_NAME} (?:counter|gauge|histogram|summary|untyped)")
_SAMPLE: Final = re.compile(r"[a-zA-Z0-9_:]+(?:\{.*\})? [^ ]+")  # no time: vLLM writes none
_SUFFIXES: Final = ("", "_bucket", "_sum", "_count", "_total", "_created")
_EXEMPLAR: Final = re.compile(r" # \{.*")  # the text format has none
_MOST_READ: Final = 4  # times the limit: families that are too large or invalid take time, too


@dataclass(slots=True)
class _Family:
    name: str
    lines: list[str]
    series: set[Series] = field(default_factory=set)
    is_valid: bool = True


def own_series(page: bytes, limit: int) -> bytes:
    """The families of vLLM itself on its page, unchanged except that exemplars are removed.

    ``limit`` bounds the number of series. A family is exported completely or not at all: not if one of its lines is
    that of another, or would make Prometheus refuse the whole page.
    """
    exported: dict[str, str] = {}
    series = read = 0
    for family in _families(page.decode("utf-8", "replace").split("\n")[:-1], limit):
        read += len(family.series) + 1
        if read > _MOST_READ * limit:
            break
        if family.is_valid and family.series and family.name not in exported and series + len(family.series) <= limit:
            series += len(family.series)
            exported[family.name] = "\n".join([*family.lines, ""])
    return "".join(exported.values()).encode()


def _families(lines: Iterable[str], most: int) -> Iterator[_Family]:
    """The families of vLLM, each of a HELP line, a TYPE line and at most ``most`` samples; no others."""
    family: _Family | None = None
    for line in lines:
        if not line.startswith("#"):
            if family is not None and family.is_valid:
                _add(line, family, most)
        elif family is not None and len(family.lines) == 1 and (kind := _TYPE.fullmatch(line)):
            family.lines.append(line)
            family.is_valid = kind[1] == family.name
        else:
            if family is not None:
                yield family
            head = _HELP.fullmatch(line)
            family = _Family(head[1], [line]) if head else None
    if family is not None:
        yield family


def _add(line: str, family: _Family, most: int) -> None:
    bare = _EXEMPLAR.sub("", line)
    sample = read_sample(bare.encode()) if _SAMPLE.fullmatch(bare) else None
    if sample is None or len(family.lines) < 2 or len(family.series) >= most or not _belongs(sample[0], family):
        family.is_valid = False
        return
    family.series.add(sample[0])
    family.lines.append(bare)


def _belongs(series: Series, family: _Family) -> bool:
    labels = [name for name, _ in series.labels]
    return (
        series.name in {family.name + suffix for suffix in _SUFFIXES}
        and series not in family.series
        and len(set(labels)) == len(labels)
        and not any(name.startswith("__") for name in labels)
    )
