"""The subcommands of a pod, and what all subcommands share; the others are in ``specdec_tools``."""
