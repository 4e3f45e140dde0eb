"""One module per subcommand, or a folder whose ``command.py`` it is.

Each has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, settings) -> exit code``.
"""
