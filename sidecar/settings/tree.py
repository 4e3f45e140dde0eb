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
    """One setting; ``path`` is its group, if it has one, and its own name."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def key(self) -> str:
        """Its name in YAML and in messages, dotted."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + "__".join(self.path).upper()

    @property
    def default(self) -> str | None:
        """Its default as an operator would write it; None if it has no default."""
        value = self.field.get_default(call_default_factory=False)
        return None if value is None else notation(self.field).render(value)


def groups() -> dict[str, type[BaseModel]]:
    """The groups of settings, by name."""
    return {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def leaves() -> Iterator[Leaf]:
    """Every setting, in the order of its definition."""
    known = groups()
    for name, field in Settings.model_fields.items():
        if name in known:
            yield from (Leaf((name, inner), inner_field) for inner, inner_field in known[name].model_fields.items())
        else:
            yield Leaf((name,), field)
