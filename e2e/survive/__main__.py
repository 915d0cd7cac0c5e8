"""The trainings of examples/survive are interrupted in all ways in `trainop run`, with the real frameworks.

python -m e2e.survive                   torch, transformers and MPI
python -m e2e.survive trainer           a selection of loop, trainer, jit and mpi

PyTorch and transformers are installed once, into $TRAINOP_SURVIVE or ~/.cache/trainop-survive (6 GB). MPI needs root
and Debian's packages, and is left out without them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from e2e.clients import environment
from e2e.mpi.__main__ import missing
from e2e.survive.examples import EXAMPLES, ROOT
from e2e.survive.locally import STALL, running
from e2e.survive.story import Story

TRANSFORMERS = "5.24.0"


def frameworks() -> Path:
    """The interpreter of an environment with torch and transformers."""
    return environment("survive", TRANSFORMERS, [f"transformers[torch]=={TRANSFORMERS}", "numpy", f"{ROOT}[local]"])


def survive(name: str) -> bool:
    """Whether the training has survived; prints its output if not."""
    python = sys.executable if name == "mpi" else frameworks()
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        # torch listens at all addresses of the machine, if it has no network of its own
        running(EXAMPLES[name](), Path(folder), "--network", "namespaces", python=python) as stage,
    ):
        story = Story(stage)
        try:
            story.tell(STALL)
        except AssertionError as error:
            print(f"{name}: FAILED: {error}", flush=True)
            return False
    print(f"{name}: survived in {time.monotonic() - begun:.0f} s", *story.told, sep="\n  ", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.survive", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXAMPLES))
    names = parser.parse_args().names
    if unknown := sorted(set(names) - set(EXAMPLES)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(EXAMPLES)}")
    lacking = "it needs root" if os.geteuid() != 0 else missing("mpich")
    if lacking and "mpi" in (names or EXAMPLES):
        print(f"mpi: left out: {lacking}", flush=True)
    chosen = [name for name in names or EXAMPLES if name != "mpi" or not lacking]
    results = [survive(name) for name in chosen]
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
