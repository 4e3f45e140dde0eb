"""The subcommand ``plan``."""

from sidecar.commands.plan.command import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
