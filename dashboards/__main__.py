"""``python -m dashboards`` regenerates the JSON."""

from dashboards.builders.output import write

write()
