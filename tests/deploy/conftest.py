"""Helm, kubectl, and the Pods that the manifests make."""

import subprocess

import pytest

from tests.deploy.deploy_tools import ROOT, plugin_pods


@pytest.fixture(scope="session")
def programs():
    """helm (4), helm3 and kubectl are there."""
    subprocess.run([ROOT / "scripts" / "kubectl-helm"], check=True)


@pytest.fixture(scope="session")
def pods(programs):
    """Every Pod with the plug-in, by a name for it."""
    return plugin_pods()
