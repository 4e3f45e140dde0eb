"""Measures a vLLM: the same prompts at several temperatures and loads, one level after another."""
