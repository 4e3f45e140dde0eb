"""How often the ± of a live speedup covers the truth, simulated."""
