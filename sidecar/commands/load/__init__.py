"""Sends requests to a vLLM and measures the replies: shared by ``sweep``, ``compare`` and ``baseline``."""
