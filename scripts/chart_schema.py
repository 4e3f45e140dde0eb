"""Writes the schema of the chart's value ``settings``, from the models of the settings.

Usage: chart_schema.py CHART   the schema takes its place in CHART/values.schema.json; the rest of
that file is written by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from sidecar.settings import Settings
from sidecar.settings.field_types import DURATION

Schema = dict[str, Any]

_MODELS: Final = "#/$defs/"
# docs/settings.md has most of these. Helm's validators differ in the formats that they know.
_LEFT_OUT: Final = {"$defs", "title", "description", "default", "format"}
# Pydantic leaves the bounds of a mapping's values under their own names.
_BOUNDS: Final = {"ge": "minimum", "le": "maximum"}
_NULL: Final = {"type": "null"}
# Helm's --set makes text of every number with a decimal point. The bounds of such a text are beyond
# a schema, except for shares.
_TEXTS: Final[Schema] = {
    "duration": {"type": "string", "pattern": f"^{DURATION.pattern}$"},
    "share": {"type": "string", "pattern": r"^(0(\.[0-9]+)?|\.[0-9]+|1(\.0+)?)$"},
    "decimal": {"type": "string", "pattern": r"^[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?$"},
}
_DURATION: Final = {"$ref": "#/definitions/duration"}
_SHARE: Final = {"$ref": "#/definitions/share"}
_DECIMAL: Final = {"$ref": "#/definitions/decimal"}
_WIDTH: Final = 100


def main(chart: Path) -> None:
    """Writes the file."""
    path = chart / "values.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    schema["definitions"] |= _TEXTS
    schema["properties"]["settings"] = settings_schema()
    path.write_text(as_text(schema) + "\n", encoding="utf-8")


def as_text(value: object, indent: str = "", before: int = 0) -> str:
    """JSON with each object and list on one line if it fits there, as it is written by hand.

    ``before`` is the number of characters in front of it on its line.
    """
    line = json.dumps(value, ensure_ascii=False)
    fits = len(indent) + before + len(line) < _WIDTH
    if fits or not value or not isinstance(value, dict | list):
        return line

    deeper = f"{indent}  "
    if isinstance(value, dict):
        names = {name: f"{json.dumps(name)}: " for name in value}
        parts = [names[name] + as_text(value[name], deeper, len(names[name])) for name in value]
        opening, closing = "{}"
    else:
        parts = [as_text(each, deeper) for each in value]
        opening, closing = "[]"
    inside = f",\n{deeper}".join(parts)
    return f"{opening}\n{deeper}{inside}\n{indent}{closing}"


def settings_schema() -> Schema:
    """What Helm accepts as ``settings``; as in a settings file, null counts as not set.

    The bounds of some texts and contradictions between settings are beyond it.
    """
    schema = Settings.model_json_schema()
    return _resolved(schema, schema["$defs"])


def _resolved(schema: Schema, models: dict[str, Schema]) -> Schema:
    """A schema without references to ``models``, in which a number may be text."""
    if reference := schema.get("$ref"):
        return _resolved(models[reference.removeprefix(_MODELS)], models)
    if "anyOf" in schema:  # X | None
        [schema] = [each for each in schema["anyOf"] if each != _NULL]
        return _resolved(schema, models)

    kept = {_BOUNDS.get(name, name): schema[name] for name in schema if name not in _LEFT_OUT}
    if "properties" in kept:
        settings = kept["properties"]
        kept["properties"] = {
            name: _or_null(_resolved(settings[name], models)) for name in settings
        }
    if "patternProperties" in kept:
        values = kept["patternProperties"]
        kept["patternProperties"] = {
            name: _as_read(_resolved(values[name], models)) for name in values
        }
        kept["additionalProperties"] = False
    for name in ("items", "additionalProperties"):
        if isinstance(kept.get(name), dict):
            kept[name] = _resolved(kept[name], models)

    if kept["type"] != "number":
        return kept
    if schema.get("format", "").startswith("duration"):
        return {"anyOf": [kept, _DURATION]}
    is_share = (kept.get("minimum"), kept.get("maximum")) == (0, 1)
    return {"anyOf": [kept, _SHARE if is_share else _DECIMAL]}


def _as_read(schema: Schema) -> Schema:
    """Any scalar where text is expected: the sidecar reads scalars as text."""
    if schema.get("type") != "string":
        return schema
    return schema | {"type": ["string", "number", "boolean"]}


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], _NULL]}

    kinds = schema["type"]
    nullable = schema | {"type": [*([kinds] if isinstance(kinds, str) else kinds), "null"]}
    if "enum" in schema:
        nullable["enum"] = [*schema["enum"], None]
    return nullable


if __name__ == "__main__":
    main(Path(sys.argv[1]))
