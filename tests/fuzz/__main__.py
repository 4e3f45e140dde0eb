"""``python -m tests.fuzz [TARGET ...] [--seconds N | --runs N]``: coverage-guided, from the corpus and into it.

Needs atheris. Every target runs in a process of its own; ends with 1 if one has found something, which libFuzzer writes
to the working directory as ``crash-…``: make it a file of the corpus, and so a test, and mend what it breaks.
"""

import argparse
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
NAMES = ("exposition", "packets", "settings")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=NAMES, metavar="TARGET", help=", ".join(NAMES))
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--seconds", type=int, default=60)
    limit.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, help="a folder for new inputs, instead of the corpus")
    options = parser.parse_args()
    failed = []
    for name in options.targets:
        folders = [str(options.into)] if options.into else []
        given = [f"-runs={options.runs}"] if options.runs is not None else [f"-max_total_time={options.seconds}"]
        command = [sys.executable, "-m", "tests.fuzz.one", name, *given, f"-seed={options.seed}", "-max_len=4096"]
        # No look for others' new inputs in between, which come and go with the time.
        command += ["-reload=0", "-timeout=20", "-print_final_stats=1", *folders, str(CORPUS / name)]
        failed += [name] * bool(subprocess.run(command, check=False).returncode)
    if failed:
        sys.stderr.write(f"found something: {', '.join(failed)}\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
