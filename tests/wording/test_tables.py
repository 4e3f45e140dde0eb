"""Tables of the page and of ``report``."""

from sidecar.analysis.split.tallies import GROUPED
from sidecar.wording.tables import GROUP_NAMES


def test_each_kind_of_group_has_a_name_in_the_tables():
    """One without would raise as soon as a group of it accepts less than the others."""
    assert GROUP_NAMES.keys() == set(GROUPED)
