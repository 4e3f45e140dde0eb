"""The settings reference, generated from the models: ``make docs`` writes it to ``docs/settings.md``."""

import sys
from collections.abc import Iterable
from inspect import cleandoc

from sidecar.settings.field_types import expected
from sidecar.settings.tree import Leaf, groups, leaves

_HEAD = """\
# Settings

<!-- Written by `make docs` from sidecar/settings/; edit the descriptions there. -->

Environment variables override the YAML file that `--config FILE` names. In the environment a setting is `SPECDEC_` and
its name in capitals, with two underscores after its group: `SPECDEC_LIMITS__SERIES=5000`; lists and mappings are JSON.
In YAML it is nested below its group:

    limits:
      series: 5000
    baseline:
      my-model:
        ttft: {p50: 120ms, p99: 0.4}

An empty variable and a key without a value count as not set. Paths are relative to the working directory. Durations are
a number of seconds, or a number and `ms`, `s`, `m` or `h`. Shares and acceptance rates run from 0 to 1. Variables that
Kubernetes sets for a Service named `specdec…` are ignored.

If settings are invalid, unknown or removed, the sidecar prints one line for each and exits with code 2.

`run` reloads the settings on SIGHUP and when the file or a mounted ConfigMap changes: `thresholds.*`, `log.level` and
what `web_config_file` names apply within seconds, and one log line names the other changed settings, which need a
restart. Invalid settings are refused as a whole, and the old ones stay in force; `specdec_settings_reloads_total`
counts both. Environment variables of a running process never change.
"""


def settings_reference() -> str:
    """All settings as Markdown: a table of those without a group, then one per group."""
    found = list(leaves())
    parts = [_HEAD, "## General\n", _table(leaf for leaf in found if "." not in leaf.key)]
    for name, group in groups().items():
        rows = (leaf for leaf in found if leaf.key.startswith(f"{name}."))
        parts += [f"## `{name}`\n", f"{cleandoc(group.__doc__ or '')}\n", _table(rows)]
    return "\n".join(parts)


def _table(rows: Iterable[Leaf]) -> str:
    head = ("| Setting | Environment | Value | Default | Meaning |", "| --- | --- | --- | --- | --- |")
    return "\n".join([*head, *map(_row, rows), ""])


def _row(leaf: Leaf) -> str:
    default = "not set" if leaf.default is None else f"`{leaf.default}`"
    meaning = " ".join((leaf.field.description or "").split())
    cells = (f"`{leaf.key}`", f"`{leaf.variable}`", expected(leaf.field), default, meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(settings_reference())
