"""The dashboards as files of JSON."""

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.builders.fleet_page import fleet_page
from dashboards.builders.operator_page import operator_page
from dashboards.builders.page import FLEET, OPERATOR

RUNBOOKS: Final = "https://specdec-sidecar.example/alerts/runbooks"  # until the dashboards are built for a site
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
