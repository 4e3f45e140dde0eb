"""The settings as a tree: each one's path, its names in YAML and in the environment, its kind and default."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sidecar.settings.fields import Fields
from sidecar.settings.groups import ModelBaseline, Quantiles, Target
from sidecar.settings.kinds import Kind

Path = tuple[str | int, ...]

PREFIX = "SPECDEC_"
_NESTED = "__"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting; ``path`` is its group, where it has one, and its own name."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def key(self) -> str:
        """Its name in YAML and in messages, dotted."""
        return dotted(self.path)

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + _NESTED.join(self.path).upper()

    @property
    def kind(self) -> Kind:
        """How its value is read and shown; every setting has one, beside the type or inside ``… | None``."""
        annotated = (part for option in get_args(self.field.annotation) for part in get_args(option)[1:])
        return next(part for part in (*self.field.metadata, *annotated) if isinstance(part, Kind))

    @property
    def default(self) -> str | None:
        """Its default as an operator would write it; None where it is unset."""
        value = self.field.get_default(call_default_factory=False)
        return None if value is None else self.kind.show(value)


def dotted(path: Path) -> str:
    """A path as it is shown: ``limits.series``, ``targets.0.name``."""
    return ".".join(str(part) for part in path)


def groups() -> dict[str, type[BaseModel]]:
    """The groups of settings, by name."""
    return {name: kind for name, field in Fields.model_fields.items() if (kind := _model(field.annotation))}


def leaves() -> Iterator[Leaf]:
    """Every setting, in the order of its definition."""
    known = groups()
    for name, field in Fields.model_fields.items():
        if name not in known:
            yield Leaf((name,), field)
            continue
        for inner, inner_field in known[name].model_fields.items():
            yield Leaf((name, inner), inner_field)


def _model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def siblings(path: Path) -> list[str]:
    """The keys that ``path`` could have been meant to be, dotted: its neighbours inside a value, else any setting."""
    inside: type[BaseModel]
    match path:
        case ("targets", _, _):
            inside = Target
        case ("baseline", _, _):
            inside = ModelBaseline
        case ("baseline", _, _, _):
            inside = Quantiles
        case _:
            return [*(leaf.key for leaf in leaves()), *groups()]
    return [dotted((*path[:-1], name)) for name in inside.model_fields]
