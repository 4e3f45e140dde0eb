"""One module for each subcommand of these tools, named after it, and what several of them share.

Each has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, settings)``, which
returns the exit code. No subcommand imports another.
"""
