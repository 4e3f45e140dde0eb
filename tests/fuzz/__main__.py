"""``python -m tests.fuzz TARGET [options of libFuzzer]``: coverage-guided.

It goes from the corpus and into it, and needs atheris.

What it finds libFuzzer writes to the working directory as ``crash-…``: make it a file of the
corpus, and so a test, and mend what it breaks.
"""

import sys

import atheris

with atheris.instrument_imports(include=["sidecar", "specdec_tools"]):
    from tests.fuzz.targets import CORPUS, TARGETS

_, name, *options = sys.argv
# No look for others' new inputs in between, which come and go with the time.
given = (
    "-max_len=4096",
    "-reload=0",
    "-timeout=20",
    "-print_final_stats=1",
    *options,
    str(CORPUS / name),
)
atheris.Setup([name, *given], TARGETS[name])
atheris.Fuzz()
