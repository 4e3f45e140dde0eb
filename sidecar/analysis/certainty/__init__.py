"""One mechanism for "is it so?": an acceptance rate with its error, and its side of a line.

The unit is the request: its draft tokens are accepted or rejected together, and requests of one
client are alike. What an error and a side promise is simulated (``benchmarks/calibration``).
"""
