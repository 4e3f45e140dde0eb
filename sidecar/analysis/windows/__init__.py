"""Sliding windows: what grew, occurred or was measured in the last minutes, in bounded memory."""
