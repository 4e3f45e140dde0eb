"""The settings: what they are (``fields``, ``groups``, ``model``), how they are read, and what is said of bad ones."""

from sidecar.settings.load import load_settings
from sidecar.settings.model import Settings

__all__ = ["Settings", "load_settings"]
