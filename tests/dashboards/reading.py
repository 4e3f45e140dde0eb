"""What a person reads from a panel as of a moment: texts, colours, rows."""

import re

from tests.dashboards.dashboard_tools import filled_in, panels


class Reader:
    """Reads a page's panels as a Prometheus fills them; ``values`` are those of the page's variables."""

    def __init__(self, page, server, now, **values):
        self._panels = {panel["title"]: panel for panel in panels(page)}
        self._server, self._now, self._values = server, now, values

    async def answers(self, title):
        """The series of each query of a panel."""
        targets = self._panels[title]["targets"]
        return [(target, await self._answer(target["expr"])) for target in targets]

    async def _answer(self, expr):
        expr = filled_in(expr.replace("$__rate_interval", "5m").replace("@ end()", ""), **self._values)
        found = await self._server.ask("query", query=expr, time=self._now)
        return [(series["metric"], float(series["value"][1])) for series in found]

    async def told(self, title):
        """What each series of a panel with words says: its legend, and the text and colour of its value."""
        words = _words(self._panels[title]["fieldConfig"]["defaults"])
        return [
            (legend(target, labels), *words[value])
            for target, found in await self.answers(title)
            for labels, value in found
        ]

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
        frames = [(target["refId"], found) for target, found in await self.answers(title) if found]
        shared = set.intersection(*({label for labels, _ in found for label in labels} for _, found in frames))
        merged = {}  # as Grafana merges: by what all queries have
        for reference, found in frames:
            for labels, value in found:
                row = merged.setdefault(tuple(labels.get(label, "") for label in sorted(shared)), {})
                row |= {**labels, f"Value #{reference}": value}
        named = panel["transformations"][1]["options"]["renameByName"]
        rows = [{named[name]: value for name, value in row.items() if name in named} for row in merged.values()]
        for sort in reversed(panel["options"]["sortBy"]):
            # As Grafana sorts: what is empty is first in ascending order.
            rows.sort(key=lambda row: row.get(sort["displayName"], float("-inf")), reverse=sort["desc"])
        return [{title: self._cell(panel, title, value) for title, value in row.items()} for row in rows]

    @staticmethod
    def _cell(panel, title, value):
        words = _words({"mappings": properties(panel, title).get("mappings", [])})
        return words[value][0] if words else value


def properties(panel, title):
    """What is set for one column of a table."""
    overrides = panel["fieldConfig"]["overrides"]
    found = [override["properties"] for override in overrides if override["matcher"]["options"] == title]
    return {each["id"]: each["value"] for each in (found[0] if found else ())}


def _words(options):
    mappings = [mapping["options"] for mapping in options.get("mappings", [])]
    return {float(value): (each["text"], each["color"]) for mapped in mappings for value, each in mapped.items()}


def legend(target, labels):
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), target.get("legendFormat", ""))
