"""``healthcheck``: a container's probe that needs no HTTP client in the image."""

import argparse
import http.client
import ssl
import sys

from sidecar.settings import Settings

HELP = "check whether a running sidecar is healthy, for container probes"
_TIMEOUT = 2.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``healthcheck`` has no arguments, but accepts invalid settings."""
    # The sidecar itself may run with the defaults of invalid settings.
    parser.set_defaults(ignore_invalid_settings=True)


def run(_arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if the sidecar at ``listen`` is healthy, else prints why not and returns 1."""
    local = settings.listen.local
    web = settings.web_config_file
    tls = None if web is None else web.tls
    if tls is None:
        connection = http.client.HTTPConnection(local.host, local.port, timeout=_TIMEOUT)
    else:
        # The sidecar's certificate is issued for other names than this address.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001 - see above
        connection = http.client.HTTPSConnection(
            local.host, local.port, timeout=_TIMEOUT, context=context
        )

    try:
        connection.connect()
        if tls is not None and tls.verify_mode is ssl.CERT_REQUIRED:
            return 0  # there is no client certificate here, but the sidecar answered the handshake
        connection.request("GET", "/-/healthy")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        fault = type(error).__name__
        print(
            f"no answer at {settings.listen}: {fault}; "
            "is the sidecar up, with this SPECDEC_LISTEN?",
            file=sys.stderr,
        )
        return 1
    finally:
        connection.close()

    if status != 200:
        print(f"status {status} at {settings.listen}", file=sys.stderr)
    return 0 if status == 200 else 1
