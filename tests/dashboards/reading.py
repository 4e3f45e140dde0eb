"""What a person reads from a panel as of a moment: texts, colours, rows.

What is read are the alerts' pods (the sidecar's own code), of which an hour is written into a real
Prometheus at once.
"""

import asyncio
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

import aiohttp

from tests.alerts.pods import Pod
from tests.alerts.vllm_pages import AT_ONCE, EPOCH, after
from tests.dashboards.dashboard_tools import filled_in, panels
from tests.debian_servers import running_prometheus

MINUTES = 60
NOW = EPOCH + 60 * (MINUTES - 1)  # of the last scrape
STALE = (  # what is not scraped any more ends as if Prometheus had marked it stale
    "--query.lookback-delta=70s"
)


def pod(name, *, ended=0, forgotten=False, idle=False, **more):
    """One that Prometheus knew until ``ended`` minutes before now.

    Unless it is ``forgotten``, Prometheus still has it as a target. An ``idle`` one has no
    requests, by the rules.
    """
    made = Pod(name, minutes=MINUTES - more.get("start", 0) - ended, **more)
    made.own |= {"pod": name}
    made.forgotten, made.serves = forgotten, int(not idle)
    return made


def held(name):
    """Its speedup, close to a threshold, is withheld by now: no baseline is of such a load."""
    made = pod(name).drafting(10, 0.8).timed(1.05)
    made.vllm.engine().at_once = after(MINUTES - 15, AT_ONCE, 1000)
    return made


def sample(name, labels, value, minute=MINUTES - 1):
    """A line of OpenMetrics."""
    quoted = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{quoted}}} {value} {EPOCH + 60 * minute}"


def scraped(pod):
    """What Prometheus has of a pod within the hour."""
    for minute, sidecar in pod.scrapes():
        for (name, labels), value in sidecar.samples(minute):
            yield sample(name, pod.own | dict(labels), value, pod.start + minute)


def firing(pod, name, severity, minutes, **labels):
    """An alert that has been firing for so many minutes."""
    labels = (
        pod.own
        | {"model_name": pod.model, "alertname": f"SpecDecode{name}", "severity": severity}
        | labels
    )
    yield sample("ALERTS", labels | {"alertstate": "firing"}, 1)
    yield sample("ALERTS_FOR_STATE", labels, NOW - 60 * minutes)


def of_fleet(fleet, pods):
    """The pods, and of each what Prometheus and the rules say of it: a fleet is a cluster."""
    for pod in pods:
        pod.own |= {"cluster": fleet}
        yield from scraped(pod)
        end = pod.start + pod.minutes
        for minute in range(pod.start, end if pod.forgotten else MINUTES):
            yield sample("up", pod.own, int(minute < end), minute)
        drafts = int(any(engine.drafts for engine in pod.vllm.engines.values()))
        labels = pod.own | {"model_name": pod.model}
        for minute in range(pod.start + 5, end):  # the rules need minutes to tell
            yield sample("pod:specdec_speculates:bool", labels, drafts, minute)
            yield sample("pod:specdec_serves:bool", labels, pod.serves, minute)


def backfill(folder, samples):
    """Writes lines of OpenMetrics where a Prometheus that starts in the folder finds them."""
    page = folder / "samples"
    with page.open("w") as file:
        file.writelines(f"{sample}\n" for sample in samples)
        file.write("# EOF\n")
    command = ("promtool", "tsdb", "create-blocks-from", "openmetrics", page, folder / "prometheus")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def once_for_all_workers(folders, name, make):
    """The folder that the first of pytest's workers had ``make`` fill; the others wait for it."""
    folder = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of this run, and of all workers
    made = folder / f"{name}-made"
    with (folder / f"{name}-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=folder) as making:
                make(Path(making))
                shutil.copytree(making, made)
    return made


def reading(page, folders, fleets, *more):
    """Yields a function that reads a panel with a fleet selected.

    The function calls the method of ``Reader`` that it is given, ``later`` minutes after the last
    scrape. ``more`` are samples besides those of the fleets' pods. ``folders`` is pytest's
    ``tmp_path_factory``.
    """
    pods = chain.from_iterable(of_fleet(*named) for named in fleets.items())
    folder = folders.mktemp("read")
    made = once_for_all_workers(
        folders, page["uid"], lambda made: backfill(made, chain(pods, *more))
    )
    shutil.copytree(made, folder, dirs_exist_ok=True)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start():
            http = await stack.enter_async_context(aiohttp.ClientSession())
            return await stack.enter_async_context(
                running_prometheus(http, folder, {}, flags=(STALE,))
            )

        server = runner.run(start())
        yield lambda fleet, title, how="shown", later=0: runner.run(
            getattr(Reader(page, server, later, cluster=fleet), how)(title)
        )
        runner.run(stack.aclose())


class Reader:
    """Reads a page's panels as a Prometheus fills them.

    ``values`` are those of the page's variables.
    """

    def __init__(self, page, server, later, **values):
        self._panels = {panel["title"]: panel for panel in panels(page)}
        self._server, self._values = server, values
        self._time = NOW + 60 * later

    async def answers(self, title):
        """The series of each query of a panel."""
        targets = self._panels[title]["targets"]
        return [(target, await self._answer(target["expr"])) for target in targets]

    async def _answer(self, expr):
        expr = filled_in(
            expr.replace("$__rate_interval", "5m").replace("@ end()", ""), **self._values
        )
        found = await self._server.ask("query", query=expr, time=self._time)
        return [(series["metric"], float(series["value"][1])) for series in found]

    async def shown(self, title):
        """What a panel says: a table's rows, else each series' legend and value.

        Without any, it is what stands for no data. A value is its text, with the colour if it has a
        meaning.
        """
        defaults = self._panels[title]["fieldConfig"]["defaults"]
        if self._panels[title]["type"] == "table":
            return await self.rows(title) or defaults["noValue"]
        words = _words(defaults)
        return [
            (legend(target, labels), *words.get(value, (f"{value:.3g}",)))
            for target, found in await self.answers(title)
            for labels, value in found
        ] or defaults["noValue"]

    async def lines(self, title):
        """The values of a panel's lines by legend."""
        return {
            legend(target, labels): round(value, 3)
            for target, found in await self.answers(title)
            for labels, value in found
        }

    async def rows(self, title):
        """A table's rows in their order, as text or number by the title of each visible column."""
        panel = self._panels[title]
        answers = await self.answers(title)
        frames = [
            (f" #{target['refId']}" * (len(answers) > 1), found)
            for target, found in answers
            if found
        ]
        if not frames:
            return []
        shared = set.intersection(
            *({label for labels, _ in found for label in labels} for _, found in frames)
        )
        merged = {}  # as Grafana merges: by what all queries have
        for reference, found in frames:
            for labels, value in found:
                row = merged.setdefault(
                    tuple(labels.get(label, "") for label in sorted(shared)), {}
                )
                row |= {**labels, f"Value{reference}": value}
        [named] = [
            each["options"]["renameByName"]
            for each in panel["transformations"]
            if each["id"] == "organize"
        ]
        rows = [
            {named[name]: value for name, value in row.items() if name in named}
            for row in merged.values()
        ]
        for sort in reversed(panel["options"]["sortBy"]):
            # As Grafana sorts: what is empty is first in ascending order.
            rows.sort(
                key=lambda row: row.get(sort["displayName"], float("-inf")), reverse=sort["desc"]
            )
        return [
            {title: self._cell(panel, title, value) for title, value in row.items()} for row in rows
        ]

    @staticmethod
    def _cell(panel, title, value):
        words = _words({"mappings": properties(panel, title).get("mappings", [])})
        return words[value][0] if words else value


def properties(panel, title):
    """What is set for one column of a table."""
    overrides = panel["fieldConfig"]["overrides"]
    found = [
        override["properties"] for override in overrides if override["matcher"]["options"] == title
    ]
    return {each["id"]: each["value"] for each in (found[0] if found else ())}


def _words(options):
    """Text and colour by a number, or by a label's text."""
    mappings = [mapping["options"] for mapping in options.get("mappings", [])]
    return {
        float(value) if "color" in each else value: (each["text"], each.get("color"))
        for mapped in mappings
        for value, each in mapped.items()
    }


def legend(target, labels):
    return re.sub(
        r"{{(\w+)}}", lambda found: labels.get(found[1], ""), target.get("legendFormat", "")
    )
