"""The dashboards as files of JSON."""

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.builders.fleet_page import fleet_page
from dashboards.builders.operator_page import operator_page
from dashboards.builders.page import FLEET, OPERATOR

FOLDER: Final = Path(__file__).resolve().parent.parent


def files() -> dict[str, str]:
    """The JSON of each dashboard by its file's name."""
    pages = {OPERATOR: operator_page(), FLEET: fleet_page()}
    return {
        f"{uid}.json": json.dumps(page.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for uid, page in pages.items()
    }


def write() -> None:
    """Rewrites the committed files."""
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
