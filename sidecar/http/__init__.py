"""The web server of the sidecar's own pages: who may connect, and what it protects itself against."""
