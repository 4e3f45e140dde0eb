"""The settings: models, loading, reloading, and the messages about invalid ones."""

from sidecar.settings.groups import Settings
from sidecar.settings.reading import load_settings

__all__ = ["Settings", "load_settings"]
