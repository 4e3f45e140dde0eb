"""One target in this process; see ``tests.fuzz``."""

import sys

from tests.fuzz.__main__ import fuzz

fuzz(sys.argv[1], sys.argv[2:])
