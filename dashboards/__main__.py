"""``python -m dashboards`` writes the JSON anew."""

import argparse

from dashboards.builders.output import write
from sidecar.alerting.alert import RUNBOOKS

parser = argparse.ArgumentParser(prog="scripts/dashboards", allow_abbrev=False)
parser.add_argument("--runbooks", metavar="URL", default=RUNBOOKS, help="where alerts/runbooks is served")
write(parser.parse_args().runbooks.rstrip("/"))
