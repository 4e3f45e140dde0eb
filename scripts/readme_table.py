"""Writes the table of a folder's README.

It has the chart's values with their comments, or the alerts with what they say.

Usage: readme_table.py FOLDER   the table takes the place of what is between the two marks in
FOLDER/README.md.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from scripts.alert_texts import NOT_PUSHED
from sidecar.analysis.pod_alert import Alert

_MARKS = ("<!-- written by scripts/docs from {source} -->\n", "<!-- end -->\n")


def main(folder: Path) -> int:
    """Returns 0 with the README written, 1 if it does not have the marks."""
    readme, values, rules = (folder / name for name in ("README.md", "values.yaml", "alerts.yaml"))
    if values.exists():
        source, rows = values, values_table(values)
    else:
        source, rows = rules, alerts_table(rules)

    begin, end = (mark.format(source=source.name) for mark in _MARKS)
    before, begun, rest = readme.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        print(f"readme_table: {readme} does not have its marks", file=sys.stderr)
        return 1

    readme.write_text(f"{before}{begin}\n{''.join(rows)}\n{end}{after}", encoding="utf-8")
    return 0


def alerts_table(rules: Path) -> Iterator[str]:
    """The table's lines: a row for each alert, with its summary, a model's name left out."""
    yield "| alert | severity | direct push | says |\n| --- | --- | --- | --- |\n"
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"] if "alert" in rule):
        says = re.sub(r"^\{\{[^}]+\}\}: ", "", rule["annotations"]["summary"])
        says = says.replace("T {{ $labels.temperature }}", "one temperature")
        link = f"[{rule['alert'].removeprefix('SpecDecode')}](runbooks/{rule['alert']}.md)"
        severity = rule["labels"]["severity"]
        is_pushed = rule["alert"] in set(Alert) and (rule["alert"], severity) not in NOT_PUSHED
        yield f"| {link} | {severity} | {'yes' if is_pushed else ''} | {_cell(says)} |\n"


def values_table(values: Path) -> Iterator[str]:
    """The table's lines: a row for each value, and for some groups.

    A group has a row if its comment is not a single value's.
    """
    text = values.read_text(encoding="utf-8")
    root = yaml.compose(text)
    yield "| value | default | meaning |\n| --- | --- | --- |\n"
    if isinstance(root, yaml.MappingNode):
        yield from _rows(root, "", text.splitlines())


def _rows(group: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[str]:
    for key, value in group.value:
        name, comment = f"{prefix}{key.value}", _comment(key, lines)
        if isinstance(value, yaml.MappingNode) and _is_group(value, comment, lines):
            if comment:
                yield f"| **`{name}`** | | {comment} |\n"
            yield from _rows(value, f"{name}.", lines)
        else:
            default = json.dumps(yaml.safe_load(yaml.serialize(value)), ensure_ascii=False)
            yield f"| `{name}` | `{_cell(default)}` | {comment} |\n"


def _is_group(value: yaml.MappingNode, comment: str, lines: list[str]) -> bool:
    """Whether a mapping is a group of values, not one value.

    It is one value where it is written as one ({…}), or where its comment speaks for all of it.
    """
    if value.flow_style:
        return False
    return not comment or any(_comment(key, lines) for key, _ in value.value)


def _comment(key: yaml.Node, lines: list[str]) -> str:
    """The lines of comment right above a key."""
    first = last = key.start_mark.line
    while first > 0 and lines[first - 1].startswith(" " * key.start_mark.column + "# "):
        first -= 1
    return _cell(" ".join(line.strip().removeprefix("# ") for line in lines[first:last]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
