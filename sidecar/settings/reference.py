"""The settings reference, generated from the models: ``make docs`` writes it to ``docs/settings.md``."""

import sys
from collections.abc import Iterable
from inspect import cleandoc

from sidecar.settings.field_types import expected
from sidecar.settings.tree import Leaf, groups, leaves

_HEAD = """\
# Settings

<!-- Written by `make docs` from sidecar/settings/; edit the descriptions there. -->

Environment variables override the YAML file that `--config FILE` names. In YAML, a setting of a group is nested below
the group's name; `limits.series` is

    limits:
      series: 5000

In the environment, a setting is `SPECDEC_` and its name in capitals, with two underscores between group and name:
`SPECDEC_LIMITS__SERIES=5000`. Lists and mappings are JSON there. Variables that Kubernetes sets for a Service named
`specdec…` are ignored. An empty variable counts as not set, as does a key without a value. Paths are relative to the
working directory.

Durations are a number of seconds, or a number and `ms`, `s`, `m` or `h`: `500ms`, `1s`, `5m`. Shares and acceptance
rates run from 0 to 1.

Several vLLMs, and a baseline to compare latencies with:

    targets:
      - {name: a, vllm_url: http://10.0.0.1:8000}
      - {name: b, vllm_url: http://10.0.0.2:8000}
    baseline:
      my-model:
        ttft: {p50: 120ms, p99: 0.4}

`run` reloads the settings on SIGHUP and when the file or a mounted ConfigMap changes: `thresholds.*` and `log.level`
apply within seconds, and one log line names the other changed settings, which need a restart. Invalid
settings are refused as a whole, with a log line for each problem, and the old ones stay in force;
`specdec_settings_reloads_total` counts both. Environment variables of a running process never change.

If settings are invalid or unknown, the sidecar prints one line for each and exits with code 2. Settings of a request
source that is not selected are validated too, but have no effect.
"""

_COLUMNS = ("Setting", "Environment", "Value", "Default", "Meaning")


def settings_reference() -> str:
    """All settings as Markdown: a table of those without a group, then one per group."""
    found = list(leaves())
    parts = [_HEAD, "## General\n", _table(leaf for leaf in found if len(leaf.path) == 1)]
    for name, group in groups().items():
        parts += [f"## `{name}`\n", f"{cleandoc(group.__doc__ or '')}\n"]
        parts.append(_table(leaf for leaf in found if leaf.path[0] == name))
    return "\n".join(parts)


def _table(rows: Iterable[Leaf]) -> str:
    lines = [_row(_COLUMNS), _row("---" for _ in _COLUMNS)]
    return "\n".join([*lines, *(_row(_cells(leaf)) for leaf in rows), ""])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cells(leaf: Leaf) -> tuple[str, ...]:
    default = "not set" if leaf.default is None else f"`{leaf.default}`"
    return (
        f"`{leaf.key}`",
        f"`{leaf.variable}`",
        expected(leaf.field),
        default,
        " ".join((leaf.field.description or "").split()),
    )


if __name__ == "__main__":
    sys.stdout.write(settings_reference())
