"""The subcommands that run in the sidecar's container, and what all subcommands share.

The other subcommands are in ``specdec_tools``.
"""
