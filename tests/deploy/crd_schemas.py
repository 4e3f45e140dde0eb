"""The parts of the monitoring operators' types that our manifests use, closed to every other field.

Names, types, patterns and what is required are as in prometheus-operator 0.93.0, VictoriaMetrics' operator 0.74 and
Google's prometheus-engine 0.19. What is in a PrometheusRule is promtool's to check.
"""

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_LIMIT = {"type": "integer"}
_DURATION = {"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}


def _closed(required: list[str], **properties: dict) -> dict:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _list_of(items: dict) -> dict:
    return {"type": "array", "items": items}


def _endpoints(timeout: str, relabelings: str) -> dict:
    """What is scraped; the operators' names of two of the fields differ."""
    label = {"type": "string", "pattern": "^(?!_$)[a-zA-Z_][a-zA-Z0-9_]*$"}
    relabeling = _closed([], sourceLabels=_list_of(label), targetLabel=_TEXT)
    return _list_of(
        _closed(
            ["port", "interval"],
            port=_TEXT,
            path=_TEXT,
            scheme={"enum": ["http", "https"]},
            interval=_DURATION,
            filterRunning=_FLAG,
            tlsConfig={"type": "object"},
            **{timeout: _DURATION, relabelings: _list_of(relabeling)},
        )
    )


def _object(group: str, kind: str, required: list[str], **spec: dict) -> dict:
    metadata = _closed(["name"], name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS)
    return _closed(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": group},
        kind={"const": kind},
        metadata=metadata,
        spec=_closed(required, **spec),
    )


_OPERATOR = "monitoring.coreos.com/v1"
_SELECTS = {"selector": _closed([], matchLabels=_TEXTS), "sampleLimit": _LIMIT}

SCHEMAS = {
    "PrometheusRule": _object(
        _OPERATOR,
        "PrometheusRule",
        ["groups"],
        groups=_list_of(
            _closed(["name", "rules"], name=_TEXT, interval=_DURATION, limit=_LIMIT, rules={"type": "array"})
        ),
    ),
    "PodMonitor": _object(
        _OPERATOR,
        "PodMonitor",
        ["selector", "podMetricsEndpoints"],
        podMetricsEndpoints=_endpoints("scrapeTimeout", "relabelings"),
        **_SELECTS,
    ),
    "ServiceMonitor": _object(
        _OPERATOR,
        "ServiceMonitor",
        ["selector", "endpoints"],
        endpoints=_endpoints("scrapeTimeout", "relabelings"),
        **_SELECTS,
    ),
    "VMPodScrape": _object(
        "operator.victoriametrics.com/v1beta1",
        "VMPodScrape",
        ["podMetricsEndpoints"],
        podMetricsEndpoints=_endpoints("scrapeTimeout", "relabelConfigs"),
        **_SELECTS,
    ),
    "PodMonitoring": _object(
        "monitoring.googleapis.com/v1",
        "PodMonitoring",
        ["selector", "endpoints"],
        selector=_SELECTS["selector"],
        endpoints=_endpoints("timeout", "metricRelabeling"),
        filterRunning=_FLAG,
        targetLabels=_closed([], metadata=_list_of({"enum": ["container", "node", "pod"]})),
        limits=_closed([], samples=_LIMIT),
    ),
}
