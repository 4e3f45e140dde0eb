import pytest

from tests.alerts.alert_state import make_look


@pytest.fixture
def look():
    """A look at one server of one model, by what is different from a healthy one."""
    return make_look
