"""One module per subcommand, or a folder with a ``command.py``.

Each has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, settings) -> exit code``.
"""
