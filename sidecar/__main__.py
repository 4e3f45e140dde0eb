"""``python -m sidecar``: the same as ``specdec-sidecar``."""

import sys

from sidecar.cli import main

sys.exit(main())
