"""``healthcheck``: for a container's probe where there is no HTTP client in the image."""

import argparse
import http.client
import sys

from sidecar.settings import Settings

_TIMEOUT = 2.0  # seconds


def run(_arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 where the sidecar at ``listen`` says that it is healthy, else 1 and why."""
    local = settings.listen.local
    connection = http.client.HTTPConnection(local.host, local.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/-/healthy")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        fault = type(error).__name__
        print(f"no answer at {settings.listen}: {fault}; is the sidecar up, with this SPECDEC_LISTEN?", file=sys.stderr)
        return 1
    finally:
        connection.close()
    if status != 200:
        print(f"status {status} at {settings.listen}", file=sys.stderr)
    return 0 if status == 200 else 1
