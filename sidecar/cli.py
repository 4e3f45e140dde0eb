"""The command line: one module in ``commands`` for each subcommand."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from sidecar import __version__
from sidecar.errors import SettingsError
from sidecar.log import configure_logging
from sidecar.settings import Settings, load_settings

_USAGE = 2  # the exit code for settings and arguments that can't be used

_COMMANDS = {
    "run": "poll vLLM and export what it says (the default)",
    "check": "say what the sidecar would see: settings, vLLM's version, speculation, what can't be known",
    "healthcheck": "ask a running sidecar whether it is healthy; for containers",
    "baseline": "watch a vLLM for a while and write its latencies as a baseline",
    "demo": "the sidecar on a simulated vLLM with traffic, to look around",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 well, 1 not, 2 for settings that can't be used."""
    arguments = parser().parse_args(argv)
    try:
        settings = load_settings(arguments.config, os.environ)
    except SettingsError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return _USAGE
    configure_logging(settings.log.level, settings.log.format, sys.stderr)
    return run_command(arguments, settings)


def run_command(arguments: argparse.Namespace, settings: Settings) -> int:
    """Imports the command's module, so that no command pays for another's imports, and runs it."""
    command = import_module(f"sidecar.commands.{arguments.command}")
    code: int = command.run(arguments, settings)
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="specdec-sidecar",
        description="Knows, in production, whether speculative decoding pays: a monitoring sidecar for vLLM.",
        epilog="Settings come from SPECDEC_* variables and --config; docs/settings.md has them all.",
    )
    top.add_argument("--version", action="version", version=f"specdec-sidecar {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
        if name == "baseline":
            command.add_argument("--duration", default="60s", help="how long to watch (default: 60s)")
            command.add_argument("--out", type=Path, metavar="FILE", help="write here instead of to the terminal")
        if name == "demo":
            command.add_argument("--duration", default=None, help="stop after this long (default: until Ctrl-C)")
    return top
