"""One module a request source, imported only where it is chosen: the others don't pay for it in memory.

Each has ``DROP_REASONS``, all reasons that it gives its sink, and ``source(settings, sink, log, offsets=)``, an
asynchronous context manager in which the source runs and which gives a ``Stats``.
"""
