"""The table by temperature for a ticket, from a running sidecar or from a recording."""
