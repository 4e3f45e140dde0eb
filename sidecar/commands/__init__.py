"""One module per subcommand, named after it, and what several of them share.

A subcommand has ``HELP`` (one line), ``add_arguments(parser)`` and ``run(arguments, settings) -> exit code``. It never
imports another one. Shared are ``arguments``, ``waiting``, ``sidecar_status`` and ``load``.
"""
