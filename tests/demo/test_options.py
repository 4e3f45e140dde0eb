"""Traffic for another machine is refused."""

import pytest

from sidecar.demo.traffic import TrafficOptions
from sidecar.errors import SettingsError


@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:8000", "http://127.0.0.1.example.org", "http://127.0.0.1@example.org", ""]
)
def test_traffic_for_another_machine_is_refused(url):
    with pytest.raises(SettingsError, match="base_url"):
        TrafficOptions(url)
