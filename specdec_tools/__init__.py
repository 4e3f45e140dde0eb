"""What a person runs: to decide, to measure, to look. What runs beside vLLM imports none of it."""
