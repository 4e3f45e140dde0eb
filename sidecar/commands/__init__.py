"""One module or package a subcommand.

Each has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, settings) -> exit code``.
"""
