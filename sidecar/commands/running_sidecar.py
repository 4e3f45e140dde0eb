"""Asks a running sidecar for its JSON."""

import json
from typing import Any

from sidecar.engine.fetch import Fetcher
from sidecar.errors import NotAnExposition
from sidecar.settings import Settings


def own_url(settings: Settings) -> str:
    """The URL of this machine's sidecar, according to its settings."""
    web = settings.web_config_file
    scheme = "http" if web is None or web.tls is None else "https"
    return f"{scheme}://{settings.listen.local}"


async def sidecar_status(url: str, *, tls: bool) -> dict[str, Any]:
    """The JSON of the sidecar at ``url``; ``tls``: whether to verify its certificate.

    Raises:
        ScrapeError: there is no answer, or it is not a JSON object.
    """
    fetcher = Fetcher(url, tls=tls)
    try:
        found = json.loads(await fetcher.get("/api/v1/status"))
    except (ValueError, RecursionError) as error:
        raise NotAnExposition("the status is not JSON") from error
    finally:
        await fetcher.close()
    if not isinstance(found, dict):
        raise NotAnExposition("the status is not one of a specdec-sidecar")
    return found
