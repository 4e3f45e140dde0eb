"""``python -m benchmarks.middleware``: prints the table; exit code 1 if a bar is missed."""

import sys

from benchmarks.middleware.run import main

sys.exit(main())
