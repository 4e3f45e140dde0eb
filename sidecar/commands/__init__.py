"""One module or package per subcommand.

Each has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, settings) -> exit code``.
"""
