"""The page at ``/``: HTML made from the status, a style sheet and a short script; it loads nothing from elsewhere."""
