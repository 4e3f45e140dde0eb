"""The settings as a tree: each one's path, its names in YAML and in the environment, and its default."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sidecar.settings.field_types import notation
from sidecar.settings.model import Settings

PREFIX = "SPECDEC_"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting; ``key`` is its name in YAML and in messages, after that of its group and a dot if it has one."""

    key: str
    field: FieldInfo

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.key.replace(".", "__").upper()

    @property
    def default(self) -> str | None:
        """Its default as an operator would write it; None if it has no default."""
        value = self.field.get_default(call_default_factory=False)
        return None if value is None else notation(self.field).render(value)


def groups() -> dict[str, type[BaseModel]]:
    """The groups of settings, by name."""
    types = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in types.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def leaves() -> Iterator[Leaf]:
    """Every setting: first those in no group."""
    known = groups()
    yield from (Leaf(name, field) for name, field in Settings.model_fields.items() if name not in known)
    for group, model in known.items():
        yield from (Leaf(f"{group}.{name}", field) for name, field in model.model_fields.items())
