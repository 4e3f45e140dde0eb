"""Sends requests to a vLLM and measures the replies: for ``sweep``, ``compare``, ``baseline``."""
