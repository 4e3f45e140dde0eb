"""Runs a command in this process, as ``main`` does, except for logging."""

import socket
from pathlib import Path

from sidecar.cli import parser, run_command
from sidecar.settings import load_settings

LEVELS = Path(__file__).parent.parent / "data" / "levels"


def command(*argv, **environment):
    """The exit code; ``capsys`` captures the output."""
    settings = load_settings(None, {f"SPECDEC_{name}": value for name, value in environment.items()})
    return run_command(parser(argv).parse_args(argv), settings)


def unused_port():
    """A port on which nothing listens at the moment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def sidecar_settings(url, **environment):
    """A sidecar that polls often, at addresses that are known before it listens."""
    given = {
        "VLLM_URL": url,
        "LISTEN": f"127.0.0.1:{unused_port()}",
        "SCRAPE_INTERVAL": "100ms",
        "SCRAPE_CPU_SHARE": "1",
    }
    return {f"SPECDEC_{name}": value for name, value in (given | environment).items()}
