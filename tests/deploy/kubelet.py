"""The probes that deploy/engine-probe ships, run as the kubelet would run them."""

import asyncio

import yaml

from tests.deploy.deploy_tools import DEPLOY

PROBES = DEPLOY / "engine-probe" / "probe.yaml"


def probes():
    """Each probe in the file: with curl, and with Python."""
    documents = yaml.safe_load_all(PROBES.read_text())
    return [one["livenessProbe"] for one in documents if one]


async def succeeds(probe, port):
    """Whether a probe succeeds in time where the sidecar listens on ``port``."""
    command = (part.replace("9911", str(port)) for part in probe["exec"]["command"])
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(probe["timeoutSeconds"]):
            return await process.wait() == 0
    except TimeoutError:
        process.kill()
        await process.wait()
        return False
