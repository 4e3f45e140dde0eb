"""The web server of the sidecar's own page: who may connect, and what no client can do to it."""
