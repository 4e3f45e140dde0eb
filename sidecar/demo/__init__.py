"""A simulated vLLM 0.32 and traffic for it, for the demo and for tests.

``tests/demo`` compares its page with one recorded from a real vLLM; the plug-in that a real vLLM loads observes its
scheduler.
"""
