"""Runs a command in this process, as ``main`` does, except for logging."""

from pathlib import Path

from sidecar.cli import parser, run_command
from sidecar.settings import load_settings
from tests.debian_servers import free_port

LEVELS = Path(__file__).parent.parent / "data" / "levels"


def command(*argv, **environment):
    """The exit code; ``capsys`` captures the output."""
    settings = load_settings(None, {f"SPECDEC_{name}": value for name, value in environment.items()})
    return run_command(parser(argv).parse_args(argv), settings)


def sidecar_settings(url, **environment):
    """A sidecar that polls often, at addresses that are known before it listens."""
    given = {
        "VLLM_URL": url,
        "LISTEN": f"127.0.0.1:{free_port()}",
        "SCRAPE_INTERVAL": "100ms",
        "SCRAPE_TIMEOUT": "60s",
        "SCRAPE_CPU_SHARE": "1",
    }
    return {f"SPECDEC_{name}": value for name, value in (given | environment).items()}
