"""The probes that deploy/engine-probe ships, run as the kubelet would run them."""

import asyncio

import yaml

from tests.deploy.deploy_tools import DEPLOY

PROBES = DEPLOY / "engine-probe" / "probe.yaml"


def commands():
    """The command of each probe in the file: with curl, and with Python."""
    documents = yaml.safe_load_all(PROBES.read_text())
    return [one["livenessProbe"]["exec"]["command"] for one in documents if one]


async def succeeds(command, port):
    """Whether a probe's command succeeds where the sidecar listens on ``port``."""
    parts = [part.replace("9911", str(port)) for part in command]
    process = await asyncio.create_subprocess_exec(*parts)
    return await process.wait() == 0
