"""Hours of traffic: memory, tasks and sums; and a real vLLM whose sidecar is killed at random."""
