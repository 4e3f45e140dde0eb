"""The settings: what they are (``groups``, ``model``), how they are loaded, and what is reported of bad ones."""

from sidecar.settings.load import load_settings
from sidecar.settings.model import Settings

__all__ = ["Settings", "load_settings"]
