"""The dashboards as files: JSON for Grafana, and a ConfigMap for the dashboard sidecar of Grafana's charts."""

import json
from pathlib import Path
from typing import Final

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.builders.fleet_page import fleet_page
from dashboards.builders.operator_page import operator_page
from dashboards.builders.page import FLEET, OPERATOR
from sidecar.alerting.alert import RUNBOOKS

FOLDER: Final = Path(__file__).resolve().parent.parent


def files(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """The JSON of each dashboard by its file's name; ``runbooks`` is where those are, without a slash at the end."""
    pages = {OPERATOR: operator_page(runbooks), FLEET: fleet_page(runbooks)}
    return {
        f"{uid}.json": json.dumps(page.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for uid, page in pages.items()
    }


def write(runbooks: str = RUNBOOKS) -> None:
    """Writes the committed files anew."""
    for name, text in files(runbooks).items():
        (FOLDER / name).write_text(text, encoding="utf-8")


class _Block(str):
    """A text that YAML shows as it is, line by line."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Knows ``_Block``."""


_Dumper.add_representer(_Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"))


def config_map(runbooks: str = RUNBOOKS) -> str:
    """A manifest with both dashboards, labelled for the sidecar that Grafana's charts run.

    The JSON is on one line each: Kubernetes keeps an applied manifest as an annotation of at most 256 KiB too.
    """
    data = {
        name: _Block(json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) + "\n")
        for name, text in files(runbooks).items()
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "specdec-dashboards",
            "labels": {"app.kubernetes.io/name": "specdec-sidecar", "grafana_dashboard": "1"},
            "annotations": {"grafana_folder": "Speculative decoding"},
        },
        "data": data,
    }
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
