"""The probes of the manifests, asked of a running sidecar."""

import pytest

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.settings import load_settings
from tests.debian_servers import free_port
from tests.deploy.deploy_tools import SIDECAR, container, environment, overlay_pod


@pytest.mark.parametrize("vllm_runs", [False, True])
async def test_the_proxys_startup_needs_itself_alone_and_its_readiness_needs_vllm(vllm_runs, http):
    one = container(overlay_pod("overlays/proxy"), SIDECAR)
    proxy = f"127.0.0.1:{free_port()}"
    async with SimulatedVllm(SimulatorOptions()) as vllm:
        url = vllm.url if vllm_runs else f"http://127.0.0.1:{free_port()}"
        own = {"SPECDEC_LISTEN": "127.0.0.1:0", "SPECDEC_PROXY__LISTEN": proxy, "SPECDEC_VLLM_URL": url}
        async with running(load_settings(None, environment(one) | own)) as address:
            places = {"specdec-metrics": address, "proxy": proxy}
            passed = {}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                target = one[probe]["httpGet"]
                async with http.get(f"http://{places[target['port']]}{target['path']}") as response:
                    passed[probe] = 200 <= response.status < 400
    assert passed == {"startupProbe": True, "livenessProbe": True, "readinessProbe": vllm_runs}
