"""What faults of vLLM, the sidecar, Prometheus and the network do to clients and to numbers."""
