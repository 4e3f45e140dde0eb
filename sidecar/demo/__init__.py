"""A simulated vLLM 0.32 and traffic for it: for load, for faults and for the demo.

It is held against recorded pages and exchanges of the real one (``tests/demo``). Import from ``server``,
``traffic`` and ``options``; nothing is loaded here.
"""
