"""``python -m dashboards`` regenerates the JSON."""

import argparse

from dashboards.builders.output import write

parser = argparse.ArgumentParser(prog="scripts/dashboards", allow_abbrev=False)
parser.parse_args()
write()
