"""Reads a command line of vLLM and checks what it says of speculation, for ``check --args``."""
