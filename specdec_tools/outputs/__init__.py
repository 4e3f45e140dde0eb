"""Whether two servers' outputs are the same, for ``fidelity``: asked for, and compared."""
