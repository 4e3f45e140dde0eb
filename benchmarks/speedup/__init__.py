"""Compares the sidecar's speedup with the clients' own time per token, on a real vLLM."""
