"""Grafana dashboards: built in Python (``builders/``), committed as JSON, ready to provision."""
