"""What runs as long as vLLM does, and what all subcommands share.

The other subcommands are in ``specdec_tools``.
"""
