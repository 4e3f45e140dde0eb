"""The subcommand ``report``."""

from sidecar.commands.report.command import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
