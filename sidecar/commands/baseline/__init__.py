"""The subcommand ``baseline``."""

from sidecar.commands.baseline.command import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
