"""The subcommand ``preflight``."""

from sidecar.commands.preflight.command import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
