"""The page and the part of it that the script refreshes every two seconds."""

from importlib.resources import files

from sidecar import __version__
from sidecar.export.declaration import Shown
from sidecar.export.page.engines import engine_section
from sidecar.export.page.hints import hints_section, marked, plugin_line
from sidecar.export.page.models import model_section
from sidecar.wording.answer import answer
from sidecar.wording.plugin import plugin_sentence

# The page loads nothing from elsewhere, and only the sidecar's own script can run in it.
SECURITY_POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'"
STATIC = {"style.css": "text/css", "live.js": "text/javascript"}


def page(shown: Shown) -> str:
    """The whole page."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Does speculation pay?</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="static/style.css">
<noscript><meta http-equiv="refresh" content="5"></noscript><script src="static/live.js" defer></script></head><body>
<header><h1>specdec-sidecar <small>{__version__}</small></h1>
<nav><a href="metrics">metrics</a> · <a href="api/v1/status">status</a> · <a href="runbooks">runbooks</a></nav>
</header><main id="content">{content(shown)}</main></body></html>
"""


def content(shown: Shown) -> str:
    """The part of the page that changes: the answer, then each model with its engines, then hints."""
    report, settings = shown.report, shown.settings
    said = answer(report)
    parts = [
        f'<p class="answer {said.tone}">{marked(said.text)}</p><p class="why">{marked(said.why)}</p>',
        plugin_line(report.plugin, said.why),
    ]
    above = f"{said.why} {plugin_sentence(report.plugin)}"
    if report.scrape.up:
        for model in report.models:
            parts.append(model_section(model, settings.thresholds, report.plugin, above))
            baseline = settings.baselines.get(model.model_name, {})
            parts += [engine_section(engine, baseline) for engine in model.engines]
        parts.append('<p class="facts">± is the 95 % confidence interval.</p>')
        parts.append(hints_section(report))
    return "".join(parts)


def static(name: str) -> bytes:
    """A file of the page; ``name`` is a key of ``STATIC``."""
    return files(__package__).joinpath(name).read_bytes()
