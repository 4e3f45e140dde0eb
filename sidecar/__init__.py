"""specdec-sidecar: shows, in production, whether speculative decoding pays."""

__version__ = "0.1.0"
