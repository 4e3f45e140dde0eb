"""The dashboards as files of JSON."""

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.builders.fleet_page import fleet_page
from dashboards.builders.operator_page import operator_page
from dashboards.builders.page import FLEET, OPERATOR

FOLDER: Final = Path(__file__).resolve().parent.parent


def files() -> dict[str, str]:
    """The JSON of each dashboard by its file's name."""
    pages = {OPERATOR: operator_page(), FLEET: fleet_page()}
    return {f"{uid}.json": _encoded(page) for uid, page in pages.items()}


def _encoded(page: Dashboard) -> str:
    content = _importable(page)
    text = json.dumps(content, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False)
    return f"{text}\n"


def _importable(page: Dashboard) -> dict[str, object]:
    """The page with what Grafana's import by file reads.

    The import asks for nothing, since the data source is a variable.
    """
    needed = {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "11.6.0"}
    source = {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}
    return {**page.build().to_json(), "__inputs": [], "__requires": [needed, source]}


def write() -> None:
    """Rewrites the committed files."""
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
