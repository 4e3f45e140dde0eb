"""The web server of the sidecar's own pages: who may connect, and how it protects itself."""
