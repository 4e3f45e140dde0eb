"""``python -m tests.export.page.pictures OUT [STATE ...]``: a picture of the page in each state.

``OUT/STATE-1280.png``, ``-390.png`` and ``-dark.png`` are what a window shows before a scroll or a
click; ``-report.png`` is all that ``specdec-sidecar report`` prints in a terminal with colours.
``OUT/truth.json`` has what a reader should answer: does it pay, where does it lose, since
when, and what to do first. ``OUT/readers/`` has the same pictures by numbers in random order for
eyes that must not know the state; ``OUT/key.json`` says which is which.
"""

import argparse
import asyncio
import json
import shutil
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from urllib.parse import quote

from aiohttp.test_utils import TestServer

from sidecar.export.web import make_web
from tests.export.page.browser import running_browser
from tests.export.page.states import STATES
from tests.export.page.terminal import as_html, printed


@dataclass(frozen=True)
class Window:
    """The window's size in pixels, and whether its colours are dark."""

    width: int
    height: int
    dark: bool = False


WINDOWS = {
    "1280": Window(1280, 800),
    "390": Window(390, 844),
    "dark": Window(1280, 800, dark=True),
}
TERMINAL = Window(868, 100)  # as wide as its columns
PICTURES = (*WINDOWS, "report")


@asynccontextmanager
async def served(shown):
    """The address of the page that shows it."""
    async with TestServer(make_web(lambda: shown, lambda: True)) as server:
        yield str(server.make_url("/"))


async def take(out, states, *, whole=False):
    """Takes the pictures; of the ``whole`` page or, else, of a window."""
    with TemporaryDirectory(prefix="specdec-browser") as profile:
        async with running_browser(profile) as tab:
            for state in states:
                async with served(state.shown()) as url:
                    for name, window in WINDOWS.items():
                        await tab.open(url, window.width, window.height, dark=window.dark)
                        await tab.screenshot(out / f"{state.name}-{name}.png", whole=whole)
                    report = as_html(await printed(url))
                    await tab.open(
                        f"data:text/html,{quote(report)}", TERMINAL.width, TERMINAL.height
                    )
                    await tab.screenshot(out / f"{state.name}-report.png")
                print(state.name, file=sys.stderr, flush=True)  # noqa: T201 - a script prints


def number(out, states):
    """Copies the pictures under numbers; returns the state of each."""
    folder = out / "readers"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    names = [state.name for state in states]
    SystemRandom().shuffle(names)
    key = {f"{place:02}": name for place, name in enumerate(names, 1)}
    for place, name in key.items():
        for picture in PICTURES:
            shutil.copyfile(out / f"{name}-{picture}.png", folder / f"{place}-{picture}.png")
    return key


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("states", nargs="*", metavar="STATE", help=f"one of {', '.join(STATES)}")
    parser.add_argument("--whole", action="store_true", help="pictures of the page to its end")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.states if name not in STATES]:
        parser.error(f"no such state: {', '.join(unknown)}")

    states = [STATES[name] for name in arguments.states] or list(STATES.values())
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(out, states, whole=arguments.whole))
    for name, content in (
        ("truth", {state.name: state.truth for state in states}),
        ("key", number(out, states)),
    ):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (out / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
