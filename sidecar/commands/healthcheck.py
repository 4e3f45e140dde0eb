"""``healthcheck``: for a container's probe if the image has no HTTP client."""

import argparse
import http.client
import sys

from sidecar.settings import Settings

HELP = "ask a running sidecar whether it is healthy; for containers"
_TIMEOUT = 2.0  # seconds


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Takes none."""


def run(_arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if the sidecar at ``listen`` is healthy, else prints why not and returns 1."""
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
