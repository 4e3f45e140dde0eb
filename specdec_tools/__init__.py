"""What a person runs to decide, to measure and to look, and an init container runs once.

What runs beside vLLM imports none of it.
"""
