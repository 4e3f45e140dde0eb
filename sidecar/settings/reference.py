"""The settings reference, written from the settings themselves: ``make docs`` puts it into ``docs/settings.md``."""

import sys
from collections.abc import Iterable

from sidecar.settings.tree import Leaf, groups, leaves

_HEAD = """\
# Settings

<!-- Written by `make docs` from sidecar/settings/; edit the descriptions there. -->

A setting comes from the environment, else from the YAML file that `--config FILE` names, else it has its default.
In YAML a setting of a group stands below the group's name; `limits.series` is

    limits:
      series: 5000

In the environment a setting is `SPECDEC_` and its name in capitals, with two underscores between a group and what
is in it: `SPECDEC_LIMITS__SERIES=5000`. Lists and mappings are JSON there. The variables that Kubernetes makes of a
Service named `specdec…` are left alone. An empty variable counts as not set, as does a key with nothing behind it.
Paths are relative to the working directory.

Durations are a number of seconds, or a number and `ms`, `s`, `m` or `h`: `500ms`, `1s`, `5m`. Shares and acceptance
rates run from 0 to 1.

Several vLLMs, and the latencies that today's are compared with:

    targets:
      - {name: a, vllm_url: http://10.0.0.1:8000}
      - {name: b, vllm_url: http://10.0.0.2:8000}
    baseline:
      my-model:
        ttft: {p50: 120ms, p99: 0.4}

What can't be used ends the start with exit code 2 and one line for each fault. An unknown key is such a fault.
Settings for a request source that is not selected are checked as well, and have no effect.
"""

_COLUMNS = ("Setting", "Environment", "Value", "Default", "Meaning")


def settings_reference() -> str:
    """All settings as Markdown: a table of those in no group, then one a group."""
    found = list(leaves())
    parts = [_HEAD, "## General\n", _table(leaf for leaf in found if len(leaf.path) == 1)]
    for name, group in groups().items():
        parts += [f"## `{name}`\n", f"{(group.__doc__ or '').strip()}\n"]
        parts.append(_table(leaf for leaf in found if leaf.path[0] == name))
    return "\n".join(parts)


def _table(rows: Iterable[Leaf]) -> str:
    lines = [_row(_COLUMNS), _row("---" for _ in _COLUMNS)]
    return "\n".join([*lines, *(_row(_cells(leaf)) for leaf in rows), ""])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cells(leaf: Leaf) -> tuple[str, ...]:
    default = "not set" if leaf.default is None else f"`{leaf.default}`"
    return f"`{leaf.key}`", f"`{leaf.variable}`", leaf.kind.describe(), default, leaf.field.description or ""


if __name__ == "__main__":
    sys.stdout.write(settings_reference())
