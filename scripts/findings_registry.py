"""Writes the tables of all findings: their rules and their words, from the modules that have some.

So a new finding needs no line outside its own modules, and mypy checks the tables.

Usage: findings_registry.py
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
_NAME: Final = "registry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A package whose modules each declare a tuple ``table`` of ``element``, from ``source``."""

    package: str
    table: str
    element: str
    source: str
    holds: str

    @property
    def path(self) -> Path:
        """The module that is written."""
        return self._folder / f"{_NAME}.py"

    @property
    def _folder(self) -> Path:
        return _ROOT.joinpath(*self.package.split("."))

    def text(self) -> str:
        """The module that joins all tables."""
        modules = sorted(path.stem for path in self._folder.glob("*.py") if self._declares(path))
        names = "".join(f"    {module},\n" for module in modules)
        tables = "".join(f"    *{module}.{self.table},\n" for module in modules)
        return (
            f'"""{self.holds}, from the modules beside this one. Written by scripts/docs."""\n'
            "\n"
            "from typing import Final\n"
            "\n"
            f"from {self.package} import (\n{names})\n"
            f"from {self.package}.{self.source} import {self.element}\n"
            "\n"
            f"{self.table}: Final[tuple[{self.element}, ...]] = (\n{tables})\n"
        )

    def _declares(self, path: Path) -> bool:
        if path.stem == _NAME:
            return False
        statements = ast.parse(path.read_text(encoding="utf-8")).body
        return any(self.table in _assigned(statement) for statement in statements)


def _assigned(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns, with or without a type."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


REGISTRIES: Final = (
    Registry(
        package="sidecar.analysis.findings",
        table="RULES",
        element="FindingRule",
        source="rule",
        holds="The rules of all findings",
    ),
    Registry(
        package="sidecar.wording.findings",
        table="WORDS",
        element="AnyWords",
        source="explanation",
        holds="The words of all findings",
    ),
)


def main() -> None:
    """Writes the tables."""
    for registry in REGISTRIES:
        registry.path.write_text(registry.text(), encoding="utf-8")


if __name__ == "__main__":
    main()
