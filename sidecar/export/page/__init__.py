"""The page at ``/``: HTML made from the status, a style sheet and a script of a few lines; nothing from elsewhere."""
