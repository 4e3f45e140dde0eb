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
_INTERRUPTED = 130  # as a shell has it for Ctrl-C

_COMMANDS = {
    "run": "poll vLLM and export what it says, until stopped",
    "check": "say what the sidecar would see: settings, vLLM's version, speculation, what can't be known",
    "healthcheck": "ask a running sidecar whether it is healthy; for containers",
    "baseline": "watch a vLLM for a while and write its latencies as a baseline",
    "middleware": "write the class for vLLM's --middleware as one file",
    "plan": "say whether a draft fits beside its target, and what it costs the KV cache",
    "sweep": "measure acceptance and latency of a vLLM by temperature and load, and say whether speculation pays",
    "report": "the table by temperature of a running sidecar or a recording, for a ticket",
    "record": "run the sidecar and write down what it sees, without any text",
    "replay": "compute what a recording tells, by temperature",
    "demo": "the sidecar on a simulated vLLM with traffic, to look around",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 well, 1 not, 2 for settings that can't be used, 130 for Ctrl-C."""
    arguments = parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
    try:
        settings = load_settings(arguments.config, os.environ)
    except SettingsError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return _USAGE
    configure_logging(settings.log.level, settings.log.format, sys.stderr)
    try:
        code = run_command(arguments, settings)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output, such as ``head``, has enough; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return code


def run_command(arguments: argparse.Namespace, settings: Settings) -> int:
    """Imports the command's module, so that no command pays for another's imports, and runs it."""
    command = import_module(f"sidecar.commands.{arguments.command}")
    code: int = command.run(arguments, settings)
    return code


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The whole command line; of the commands' own arguments only those of the one that ``argv`` names."""
    top = argparse.ArgumentParser(
        prog="specdec-sidecar",
        description="Knows, in production, whether speculative decoding pays: a monitoring sidecar for vLLM.",
        epilog="Settings come from SPECDEC_* variables and --config; docs/settings.md has them all.",
    )
    top.add_argument("--version", action="version", version=f"specdec-sidecar {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = next((argument for argument in argv if argument in _COMMANDS), None)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
        if name == "baseline":
            command.add_argument(
                "--duration", default="60s", metavar="TIME", help="how long, such as 10m (default: 60s)"
            )
            command.add_argument("--out", type=Path, metavar="FILE", help="write here instead of to the terminal")
        elif name == "demo":
            command.add_argument(
                "--duration", metavar="TIME", help="stop after this long, such as 10m (default: until Ctrl-C)"
            )
        elif name == named and name in _WITH_ARGUMENTS:
            import_module(f"sidecar.commands.{name}").add_arguments(command)
    return top


_WITH_ARGUMENTS = frozenset({"middleware", "plan", "sweep", "report", "record", "replay"})
