"""Marks of single cases."""

import pytest


def slow(*values):
    """A case that runs with the slow tests: a variant of one that always runs."""
    return pytest.param(*values, marks=pytest.mark.slow)
