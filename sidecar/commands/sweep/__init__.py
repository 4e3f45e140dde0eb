"""The subcommand ``sweep``."""

from sidecar.commands.sweep.command import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
