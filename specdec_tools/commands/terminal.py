"""What a terminal is given: colours, and lines that break between words."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap
from typing import Final

from sidecar.wording.numbers import UNBROKEN

Paint = Callable[[str, str], str]  # a text, and the tone of its colour

BOLD: Final = "bold"  # a tone without a colour
COLORS: Final = {"good": "1;32", "likely": "1;36", "even": "1;33", "bad": "1;31"}
_FEWEST_COLUMNS: Final = 40
_SPACE: Final = "\N{NO-BREAK SPACE}"
_TO_COPY: Final = re.compile(r"`[^`]+`")
_KEYS: Final = re.compile(r', (?="[^"]*": )')


def plain(text: str, _tone: str) -> str:
    """No colour."""
    return text


def colored(text: str, tone: str) -> str:
    """Bold, in the tone's colour, if it has one."""
    return f"\033[{COLORS.get(tone, '1')}m{text}\033[0m"


def has_colors() -> bool:
    """Whether what is printed is read on a terminal that shows colours and should."""
    is_dumb = os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and not is_dumb


def broken(lines: Iterable[str]) -> Iterator[str]:
    """The lines; on a terminal, sentences are broken between words where it ends.

    Options are broken where they can be copied all the same; rows of tables are not broken.
    """
    if not sys.stdout.isatty():
        yield from lines
        return

    columns = max(shutil.get_terminal_size().columns, _FEWEST_COLUMNS)
    for line in lines:
        text = line.lstrip()
        indent = line[: len(line) - len(text)]
        if text.startswith("--"):
            yield from _option(text, indent, columns)
        elif text and "  " not in text:
            yield from _sentence(text, indent, columns)
        else:
            yield line


def _sentence(text: str, indent: str, columns: int) -> Iterator[str]:
    """Keeps a number and its unit together, and what stands in backticks, to be copied."""
    whole = UNBROKEN.sub(_SPACE, _TO_COPY.sub(lambda found: found[0].replace(" ", _SPACE), text))
    parts = wrap(
        whole,
        columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return (part.replace(_SPACE, " ") for part in parts)


def _option(text: str, indent: str, columns: int) -> Iterator[str]:
    """Breaks it before keys of its JSON, where a line end changes nothing for a shell either."""
    first, *others = _KEYS.split(text)
    line = f"{indent}{first}"
    for part in others:
        if len(line) + len(f", {part},") > columns:
            yield f"{line},"
            line = f"{indent}  {part}"
        else:
            line = f"{line}, {part}"
    yield line
