"""The settings reference, from the models: ``make docs`` writes it to ``docs/settings.md``."""

import json
import sys
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any, Final

from pydantic import BaseModel

from sidecar.analysis.series import shown_positions
from sidecar.settings.groups import Settings, groups, variable

# A backslash at the end of a line goes on with the same line of the page.
_HEAD: Final = """\
# Settings

<!-- Written by `make docs` from sidecar/settings/; edit the descriptions there. -->

Set settings in a YAML file (`--config FILE`) or in environment variables, \
which override the file. The name of a
variable is `SPECDEC_` and the setting's name in capitals, \
with two underscores after its group, for example
`SPECDEC_LIMITS__SERIES=5000`; lists and mappings are JSON. \
In YAML a setting is nested below its group:

    limits:
      series: 5000
    baseline:
      my-model:
        ttft: {p50: 120ms, p99: 0.4}

An empty variable and a key without a value count as not set. Paths are relative to the \
working directory. Durations are
a number of seconds, or a number and `ms`, `s`, `m` or `h`. Shares and acceptance rates run from \
0 to 1. Variables that
Kubernetes sets for a Service named `specdec…` are ignored.

`SPECDEC_CONFIG` is the default of `--config`, and `SPECDEC_USER_FILE` and `SPECDEC_USER` are for \
the sidecar's password
([security.md](security.md#commands-against-a-sidecar-with-a-password-or-a-ca-of-your-own)); \
they are not settings.

If settings are invalid or unknown, the sidecar prints one line for each and exits with code 2. \
With `run
--ignore-invalid-settings`, as in our chart and manifests, where vLLM waits for the sidecar, \
each invalid setting has its
default instead. Settings that contradict each other all have theirs. The log, the status page, \
`report` and
`specdec_settings_invalid` say so, and SpecDecodeSettingsInvalid fires.

`run` reloads the settings on SIGHUP and when the file or a mounted ConfigMap changes. \
`thresholds.*`, `engine_health.*`,
`log.level` and the content of `web_config_file` apply within seconds. \
Other settings need a restart; a log line names those that have
changed. If any setting is invalid, the sidecar keeps all the old ones; \
`specdec_settings_reloads_total` counts both
outcomes. Environment variables of a running process never change.
"""


_NOUNS: Final = {
    "integer": "whole number",
    "boolean": "true or false",
    "array": "list (JSON in the environment)",
    "object": "mapping (JSON in the environment)",
}


def settings_reference() -> str:
    """All settings as Markdown: a table of those without a group, then one per group."""
    known, defaults = groups(), Settings().model_dump(mode="json")
    alone = {name: schema for name, schema in _schemas(Settings).items() if name not in known}
    parts = [_HEAD, "## General\n", _table("", alone, defaults)]
    for name, group in known.items():
        heading = f"## `{name}`\n\n{cleandoc(group.__doc__ or '')}\n"
        parts += [heading, _table(f"{name}.", _schemas(group), defaults[name])]
    return "\n".join(parts)


def _schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return properties


def _table(group: str, schemas: Mapping[str, dict[str, Any]], defaults: Mapping[str, Any]) -> str:
    head = (
        "| Setting | Environment | Value | Default | Meaning |",
        "| --- | --- | --- | --- | --- |",
    )
    rows = (_row(f"{group}{name}", schema, defaults[name]) for name, schema in schemas.items())
    return "\n".join([*head, *rows, ""])


def _row(key: str, schema: dict[str, Any], default: object) -> str:
    if isinstance(default, float) and schema.get("format", "").startswith("duration"):
        default = f"{default / 60:g}m" if default % 60 == 0 else f"{default:g}s"
    text = "not set"
    if default is not None:
        text = f"`{default if isinstance(default, str) else json.dumps(default)}`"

    meaning = " ".join(schema.get("description", "").split())
    meaning = meaning.replace("{positions}", str(shown_positions(Settings(), engines=8)))
    cells = (f"`{key}`", f"`{variable(key)}`", _value(schema), text, meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _value(schema: dict[str, Any]) -> str:
    """The form of a value, and its range."""
    schema = schema | schema.get("anyOf", [{}])[0]  # X of ``X | None``
    if "enum" in schema:
        return ", ".join(schema["enum"])
    noun: str = schema.get("format") or _NOUNS.get(schema["type"], schema["type"])
    if "minimum" not in schema:
        return noun
    return f"{noun}, {schema['minimum']:.9g} to {schema['maximum']:.9g}"


if __name__ == "__main__":
    sys.stdout.write(settings_reference())
