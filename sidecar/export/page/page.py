"""The page and the part of it that the script refreshes every two seconds."""

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from sidecar.export.page.sections import target_section

# The page loads nothing from elsewhere, and only our own script can run in it.
SECURITY_POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'"
STATIC = {"style.css": "text/css", "live.js": "text/javascript"}


def page(status: Mapping[str, Any]) -> str:
    """The whole page."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Does speculation pay?</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="static/style.css">
<noscript><meta http-equiv="refresh" content="5"></noscript><script src="static/live.js" defer></script></head><body>
<header><h1>specdec-sidecar <small>{escape(status["version"])}</small></h1>
<nav><a href="metrics">metrics</a> · <a href="api/v1/status">status</a></nav></header>
<main id="content">{content(status)}</main></body></html>
"""


def content(status: Mapping[str, Any]) -> str:
    """The part of the page that changes."""
    several = len(status["targets"]) > 1
    return "".join(
        (f"<h2>{escape(target['name'])}</h2>" if several else "") + target_section(target, status["thresholds"])
        for target in status["targets"]
    )


def static(name: str) -> bytes:
    """A file of the page; ``name`` is a key of ``STATIC``."""
    return files(__package__).joinpath(name).read_bytes()
