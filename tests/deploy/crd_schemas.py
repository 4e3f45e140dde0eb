"""The parts of the Prometheus operator's types that our manifests use, closed to every other field.

Written after example/prometheus-operator-crd of prometheus-operator 0.93.0 (operator.prometheus.io/version "0.93.0",
monitoring.coreos.com/v1): names, types, patterns and what is required are as there.
"""

_DURATION = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _closed(required: list[str], **properties: dict) -> dict:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list_of(items: dict) -> dict:
    return {"type": "array", "items": items}


_METADATA = _closed(["name"], name={"type": "string"}, namespace={"type": "string"}, labels=_TEXTS, annotations=_TEXTS)

_RELABELING = _closed(
    [],
    sourceLabels=_list_of({"type": "string", "pattern": "^(?!_$)[a-zA-Z_][a-zA-Z0-9_]*$"}),
    targetLabel={"type": "string"},
    regex={"type": "string"},
    replacement={"type": "string"},
    separator={"type": "string"},
    action={"enum": ["replace", "keep", "drop", "hashmod", "labelmap", "labeldrop", "labelkeep", "lowercase"]},
)

_ENDPOINT = _closed(
    [],
    port={"type": "string"},
    path={"type": "string"},
    interval=_DURATION,
    scrapeTimeout=_DURATION,
    honorLabels={"type": "boolean"},
    filterRunning={"type": "boolean"},
    relabelings=_list_of(_RELABELING),
    metricRelabelings=_list_of(_RELABELING),
)

_RULE = _closed(
    ["expr"],
    alert={"type": "string"},
    record={"type": "string"},
    expr={"type": ["string", "integer"]},
    labels=_TEXTS,
    annotations=_TEXTS,
    **{"for": _DURATION, "keep_firing_for": {**_DURATION, "minLength": 1}},
)

_GROUP = _closed(
    ["name"],
    name={"type": "string", "minLength": 1},
    interval=_DURATION,
    limit={"type": "integer"},
    labels=_TEXTS,
    query_offset=_DURATION,
    rules=_list_of(_RULE),
)


def _object(kind: str, spec: dict) -> dict:
    return _closed(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": kind},
        metadata=_METADATA,
        spec=spec,
    )


SCHEMAS = {
    "PodMonitor": _object(
        "PodMonitor",
        _closed(
            ["selector"],
            selector=_closed([], matchLabels=_TEXTS, matchExpressions={"type": "array"}),
            namespaceSelector=_closed([], any={"type": "boolean"}, matchNames=_list_of({"type": "string"})),
            podMetricsEndpoints=_list_of(_ENDPOINT),
            podTargetLabels=_list_of({"type": "string"}),
            jobLabel={"type": "string"},
            sampleLimit={"type": "integer"},
        ),
    ),
    "PrometheusRule": _object("PrometheusRule", _closed([], groups=_list_of(_GROUP))),
}
