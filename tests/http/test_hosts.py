"""The defence against DNS rebinding."""

import pytest

from sidecar.http.hosts import is_ours


@pytest.mark.parametrize(
    "host",
    [
        "", "10.1.2.3:9911", "127.0.0.1", "[::1]:9911", "[2001:db8::1]", "localhost:9911", "LOCALHOST", "gpu-7:9911",
        "sidecar.monitoring.svc:9911", "sidecar.monitoring.svc.cluster.local.", "metrics.corp.internal",
        "specdec.example.com:9911", "Specdec.Example.Com.:80",
    ],
)  # fmt: skip
def test_what_no_stranger_can_own_or_the_operator_named_is_ours(host):
    assert is_ours(host, {"specdec.example.com"})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:9911", "127.0.0.1.evil.example", "localhost.evil.example", "x.svc.evil.example", "evilsvc.com",
        "specdec.example.com.evil.example", "a.specdec.example.com", "127.1.evil", "[evil.example]",
    ],
)  # fmt: skip
def test_any_other_name_is_not(host):
    assert not is_ours(host, {"specdec.example.com"})


def test_all_may_be_allowed():
    assert is_ours("evil.example", {"*"})
