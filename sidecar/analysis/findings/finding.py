"""What every finding has."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of a loss; a subclass adds its evidence.

    ``code`` is the label value of ``specdec_finding``. ``cost`` estimates the share of the decoding
    time that the cause costs, 0 to 1, and only orders findings; it is 0 for what costs no step.
    """

    code: ClassVar[str]
    cost: float = 0.0
