"""``python -m dashboards`` writes the JSON anew; ``--configmap`` prints the ConfigMap instead."""

import argparse
import sys

from dashboards.builders.output import config_map, write
from sidecar.alerting.alert import RUNBOOKS

parser = argparse.ArgumentParser(prog="scripts/dashboards", allow_abbrev=False)
parser.add_argument("--configmap", action="store_true", help="print them as a ConfigMap; the files stay as they are")
parser.add_argument("--runbooks", metavar="URL", default=RUNBOOKS, help="where alerts/runbooks is served")
arguments = parser.parse_args()
runbooks = arguments.runbooks.rstrip("/")
if arguments.configmap:
    sys.stdout.write(config_map(runbooks))
else:
    write(runbooks)
