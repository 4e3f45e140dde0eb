"""Wraps Prometheus' rule files and Grafana's dashboards in Kubernetes objects.

Usage: manifests_generate.py FOLDER   from the repository's root; writes FOLDER/rules.yaml and FOLDER/dashboards.yaml.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

_HEADER = "# Made by scripts/docs from {source}: edit there.\n"
_LABELS = {"app.kubernetes.io/name": "specdec-sidecar"}
_FOLDER_ANNOTATION = "grafana_folder"


class _Dumper(yaml.SafeDumper):
    """Multi-line text as a literal block, so that a reviewer sees the lines."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def main(alerts: Path, dashboards: Path, out: Path) -> None:
    """Writes both files."""
    rules = [prometheus_rule(path) for path in sorted(alerts.glob("*.yaml"))]
    maps = [config_map(path) for path in sorted(dashboards.glob("*.json"))]
    _write(out / "rules.yaml", alerts, rules)
    _write(out / "dashboards.yaml", dashboards, maps)
    print(f"{len(rules)} PrometheusRules and {len(maps)} dashboards in {out}")


def prometheus_rule(path: Path) -> dict[str, Any]:
    """One rule file as a PrometheusRule, its groups untouched."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": _name(path), "labels": _LABELS},
        "spec": yaml.safe_load(path.read_text(encoding="utf-8")),
    }


def config_map(path: Path) -> dict[str, Any]:
    """One dashboard as the ConfigMap that Grafana's sidecar looks for."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{_name(path)}-dashboard",
            "labels": _LABELS | {"grafana_dashboard": "1"},
            "annotations": {_FOLDER_ANNOTATION: "specdec-sidecar"},
        },
        "data": {path.name: path.read_text(encoding="utf-8")},
    }


def _name(path: Path) -> str:
    stem = path.stem.lower().replace("_", "-")
    return stem if stem.startswith("specdec") else f"specdec-{stem}"


def _write(path: Path, source: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    path.write_text(_HEADER.format(source=f"{source.name}/") + text, encoding="utf-8")


if __name__ == "__main__":
    main(Path("alerts"), Path("dashboards"), Path(sys.argv[1]))
