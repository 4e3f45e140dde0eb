"""Settings from environment variables."""

import re
from collections.abc import Mapping

from pydantic_settings import EnvSettingsSource

from sidecar.settings.model import Settings
from sidecar.settings.tree import PREFIX

# Kubernetes puts these into every container for a Service whose name begins with "specdec"
# (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables). ``…_PORT`` could also be
# meant as a setting, so there the value must be Kubernetes' too.
_SERVICE_LINK = re.compile(
    r"SPECDEC_(\w+_)?SERVICE_(HOST|PORT(_\w+)?)=.*"
    r"|SPECDEC_(\w+_)?PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://.*"
    r"|SPECDEC_(\w+_)?PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*",
    re.ASCII | re.DOTALL,
)


class EnvironmentSource(EnvSettingsSource):
    """pydantic-settings' environment source, reading the given mapping instead of the process's environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(Settings, case_sensitive=False)
        self.env_vars = {name.lower(): text for name, text in variables.items()}


def is_service_link(name: str, text: str) -> bool:
    """Whether Kubernetes created this variable for a Service."""
    return bool(_SERVICE_LINK.fullmatch(f"{name}={text}"))


def own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are meant for the sidecar."""
    return {name: text for name, text in environ.items() if name.startswith(PREFIX) and not is_service_link(name, text)}
