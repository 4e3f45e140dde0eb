"""Where the sidecar's pages can be reached."""

import socket

import pytest

from sidecar import app
from sidecar.settings.field_types import Address
from tests.page import Page

NOWHERE = "http://127.0.0.1:1"
needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
@pytest.mark.parametrize("client", ["127.0.0.1", pytest.param("[::1]", marks=needs_ipv6)])
async def test_either_wildcard_is_every_address_of_the_machine(sidecar, host, client):
    """The kubelet probes a Pod at its IPv6 address where the cluster has only those."""
    async with sidecar(NOWHERE, listen=f"{host}:0") as page:
        port = page.url.rpartition(":")[2]
        response = await Page(f"http://{client}:{port}").get("/-/healthy")

    assert response.status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
async def test_on_a_kernel_without_ipv6_it_is_every_ipv4_address(sidecar, monkeypatch, host):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    async with sidecar(NOWHERE, listen=f"{host}:0") as page:
        assert page.url.startswith("http://0.0.0.0:")
        port = page.url.rpartition(":")[2]
        response = await Page(f"http://127.0.0.1:{port}").get("/-/healthy")

    assert response.status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_client_on_this_machine_reaches_a_wildcard_at_ipv4s_loopback(host):
    """A kernel with IPv6 switched off still binds the wildcard, but has no ::1."""
    assert Address(host, 9911).local == Address("127.0.0.1", 9911)


@pytest.mark.parametrize(
    ("known", "address"),
    [("fd00::7", "[fd00::7]:9911"), ("10.4.7.21", "10.4.7.21:9911")],
)
def test_alerts_link_to_the_pods_own_address_of_either_family(monkeypatch, known, address):
    monkeypatch.setattr(socket, "gethostname", lambda: "pod")
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _host, port, **_: [(0, 0, 0, "", (known, port))]
    )

    assert str(app._reachable(Address("0.0.0.0", 9911))) == address
