"""The settings by name: in YAML and in messages that of the group, a dot and its own; and in the environment."""

from pydantic import BaseModel

from sidecar.settings.model import Settings

PREFIX = "SPECDEC_"


def groups() -> dict[str, type[BaseModel]]:
    """The groups of settings, by name."""
    types = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in types.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def keys() -> list[str]:
    """Every setting: first those in no group."""
    known = groups()
    alone = [name for name in Settings.model_fields if name not in known]
    return alone + [f"{group}.{name}" for group, model in known.items() for name in model.model_fields]


def variable(key: str) -> str:
    """Its name in the environment."""
    return PREFIX + key.replace(".", "__").upper()
