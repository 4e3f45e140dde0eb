"""The command line: one module for each subcommand, here or in the tools."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sidecar import __version__
from sidecar.errors import SettingsError, SpecDecError
from sidecar.memory import sparing

if TYPE_CHECKING:
    from sidecar.settings import Settings

_INTERRUPTED = 130  # exit code that shells give for Ctrl-C

_COMMANDS = (
    *("run", "plugin", "check", "healthcheck", "plan", "baseline"),
    *("sweep", "compare", "fidelity", "report", "record", "replay", "demo"),
)
_BESIDE_VLLM = ("run", "healthcheck")  # run in the sidecar's container; the others are tools


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    The codes: 0 success, 1 failure, 2 bad settings or input, 3 undecided, 4 net negative, 130
    Ctrl-C.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["run"]:
        # Until ``run`` has its own handlers. By default SIGHUP ends the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    # These imports are slow, so they come after the signal handlers.
    from sidecar.log import configure_logging  # noqa: PLC0415 - see above
    from sidecar.settings.reading import read_settings  # noqa: PLC0415 - see above

    with sparing():
        top = parser(argv)
    arguments = top.parse_args(argv)

    loaded = read_settings(arguments.config, os.environ)
    settings = loaded.settings
    if loaded.problems and not arguments.ignore_invalid_settings:
        print(SettingsError(list(loaded.problems)), file=sys.stderr)
        return SettingsError.exit_code

    arguments.invalid_settings = (*loaded.problems, *loaded.consequences)

    configure_logging(sys.stderr, level=settings.log.level, format=settings.log.format)
    try:
        code = run_command(arguments, settings)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, for example ``head``, has closed its end. Python flushes once more at exit,
        # and would print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED

    return code


def run_command(arguments: argparse.Namespace, settings: "Settings") -> int:
    """Runs the command that ``arguments`` name and returns its exit code.

    If the command raises a ``SpecDecError``, prints it and returns its exit code.
    """
    try:
        code: int = _module(arguments.command).run(arguments, settings)
    except SpecDecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return code


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for the command that ``argv`` names, or for all commands if it names none.

    So no command pays for another's imports.
    """
    from sidecar.settings.groups import CONFIG_VARIABLE  # noqa: PLC0415 - see ``main``

    top = argparse.ArgumentParser(
        prog="specdec-sidecar",
        description=(
            "Shows, in production, whether speculative decoding pays: a monitoring sidecar for"
            " vLLM."
        ),
        epilog=(
            "Settings come from SPECDEC_* variables and --config; docs/settings.md lists them all."
        ),
    )
    top.add_argument("--version", action="version", version=f"specdec-sidecar {__version__}")

    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    first = argv[0] if argv else ""
    for name in [first] if first in _COMMANDS else _COMMANDS:
        module = _module(name)
        description = f"{module.HELP[:1].upper()}{module.HELP[1:]}."
        command = commands.add_parser(name, help=module.HELP, description=description)
        command.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            default=os.environ.get(CONFIG_VARIABLE) or None,
            help=f"YAML file with settings (default: {CONFIG_VARIABLE})",
        )
        command.set_defaults(ignore_invalid_settings=False)
        module.add_arguments(command)

    return top


def _module(command: str) -> ModuleType:
    package = "sidecar" if command in _BESIDE_VLLM else "specdec_tools"
    return import_module(f"{package}.commands.{command}")
