"""What ``report`` prints in a terminal, as a page of HTML."""

import asyncio
import io
import os
from contextlib import redirect_stdout
from html import escape
from unittest import mock

from tests.commands.commands_tools import command

COLUMNS = 100

# The end of one, bold, and bold in red, green, yellow or cyan.
_COLORS = {
    "0": "",
    "1": "#fff",
    "1;31": "#ff6e67",
    "1;32": "#5ff967",
    "1;33": "#fefb67",
    "1;36": "#5ffdff",
}
# A terminal breaks a line where its columns end, be it within a word.
_PAGE = (
    '<!doctype html><meta charset="utf-8"><body style="margin:0;background:#000">'
    '<pre style="margin:0;padding:8px;width:{columns}ch;font:14px/1.3 DejaVu Sans Mono,monospace;'
    'color:#ccc;white-space:break-spaces;line-break:anywhere">{text}</pre>'
)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


async def printed(url):
    """What ``report`` on the sidecar at ``url`` prints in a terminal with colours."""
    environment = {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "NO_COLOR": ""}
    with mock.patch.dict(os.environ, environment), redirect_stdout(_Terminal()) as terminal:
        assert await asyncio.to_thread(command, "report", "--url", url) == 0
    return terminal.getvalue()


def as_html(text):
    """The page that shows ``text`` as a terminal shows it.

    Raises:
        ValueError: it has codes that are no colours.
    """
    shown = ""
    first, *parts = text.split("\033[")
    for part in (f"0m{first}", *parts):
        code, _, said = part.partition("m")
        if code not in _COLORS:
            raise ValueError(f"no colour: {part}")
        bold = f'<b style="color:{_COLORS[code]}">{escape(said)}</b>'
        shown += bold if _COLORS[code] else escape(said)
    return _PAGE.format(columns=COLUMNS, text=shown)
