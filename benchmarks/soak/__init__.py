"""The sidecar under load for a long time."""
