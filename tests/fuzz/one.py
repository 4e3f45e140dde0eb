"""One target in this process; see ``tests.fuzz``. The arguments are its name and libFuzzer's."""

import sys

import atheris

with atheris.instrument_imports(include=["sidecar"]):
    from tests.fuzz.targets import TARGETS

atheris.Setup(sys.argv[1:], TARGETS[sys.argv[1]])
atheris.Fuzz()
