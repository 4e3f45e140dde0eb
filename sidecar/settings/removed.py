"""Settings that are gone, and what to do about each."""

from typing import Final

REMOVED: Final = {
    "requests": (
        "removed: the plug-in in vLLM replaces all request sources (docs/plugin.md); if clients use the proxy's port, "
        "point them at vLLM's own first, then delete this setting (CHANGELOG)"
    ),
    "proxy": (
        "removed: the plug-in in vLLM replaces the proxy; point clients at vLLM's own port first, then delete this "
        "setting (CHANGELOG)"
    ),
    "middleware": (
        "removed: the plug-in in vLLM replaces the middleware; take --middleware out of vLLM's arguments, then delete "
        "this setting (CHANGELOG)"
    ),
    "traces": (
        "removed: the plug-in in vLLM replaces traces; take the sidecar's address out of --otlp-traces-endpoint, then "
        "delete this setting (CHANGELOG)"
    ),
    "targets": "removed: a sidecar watches one vLLM; run one for each, with vllm_url (CHANGELOG)",
    "default_temperature": "removed: the plug-in reports the temperature in effect; delete this setting (CHANGELOG)",
}
"""By the first part of its name."""
