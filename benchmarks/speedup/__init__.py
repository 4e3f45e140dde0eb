"""Speedup as the sidecar computes it against the clients' own time per token, on a real vLLM."""
