"""The error of the attribution on recorded traffic of a real vLLM."""
