"""A simulated vLLM 0.32 and traffic for it, for the demo and for tests.

Its page and its responses are checked against recorded ones of the real vLLM (``tests/demo``).
"""
