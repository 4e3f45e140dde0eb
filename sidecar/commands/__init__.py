"""One module a subcommand; each has ``run(arguments, settings) -> exit code``."""
