"""The lab: a real vLLM with small models, for tests and measurements. See README.md."""
