"""One module per subcommand, named after it, and what several of them share; no subcommand imports
another.

Each has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, settings) -> exit
code``.
"""
