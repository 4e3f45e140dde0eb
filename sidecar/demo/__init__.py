"""A simulated vLLM 0.32 and traffic for it, for the demo and for tests.

Its page is checked against a recorded one of the real vLLM (``tests/demo``); its scheduler is observed by the plug-in
that a real vLLM loads.
"""
