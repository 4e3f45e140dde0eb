"""Which alerts Alertmanager holds back: the inhibition rules of the shipped configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

_CONFIGURATION: Final = (
    Path(__file__).resolve().parents[2] / "alerts" / "alertmanager" / "alertmanager.yaml"
)
FIRES: Final = 'alertstate="firing"'


@dataclass(frozen=True, slots=True)
class Inhibition:
    """A firing alert that matches ``source`` holds back those that match ``target``.

    Both have the same labels ``equal``. Matchers are written as in PromQL.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...]


def inhibitions() -> tuple[Inhibition, ...]:
    """In the order of the file."""
    rules = yaml.safe_load(_CONFIGURATION.read_text(encoding="utf-8"))["inhibit_rules"]
    return tuple(
        Inhibition(
            tuple(rule["source_matchers"]), tuple(rule["target_matchers"]), tuple(rule["equal"])
        )
        for rule in rules
    )
