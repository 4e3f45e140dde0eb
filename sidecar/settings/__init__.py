"""The settings: their models (``groups``, ``model``), how they are loaded, and the messages about invalid ones."""

from sidecar.settings.load import load_settings
from sidecar.settings.model import Settings

__all__ = ["Settings", "load_settings"]
