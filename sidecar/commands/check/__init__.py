"""The subcommand ``check``."""

from sidecar.commands.check.command import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
