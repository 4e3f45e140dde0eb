"""A simulated vLLM 0.32 and its traffic, for the demo and for tests.

``tests/demo`` compares it with a real one.
"""
