"""The subcommand ``compare``."""

from sidecar.commands.compare.command import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
