"""``python -m dashboards`` writes the JSON anew."""

import argparse

from dashboards.builders.output import RUNBOOKS, write

parser = argparse.ArgumentParser(prog="scripts/dashboards", allow_abbrev=False)
parser.add_argument("--runbooks", metavar="URL", default=RUNBOOKS, help="where alerts/runbooks is served")
write(parser.parse_args().runbooks.rstrip("/"))
