"""Trains with real frameworks on the embedded cluster, configured only by what the operator injects.

python -m e2e.frameworks                    all frameworks; the first run installs several GB
python -m e2e.frameworks jax xgboost        a selection

Each framework has its own virtual environment in $TRAINOP_FRAMEWORKS or ~/.cache/trainop-frameworks. MXNet is not
included: its last release needs Python 3.11 (`make e2e JOB=mxjob`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 300
"""Timeout in seconds for one run; most of the time is spent on imports."""


@dataclass(frozen=True)
class Run:
    """One `trainop run`, which must succeed."""

    arguments: tuple[str, ...]
    """Job files or a script with its options; paths are relative to the project's root."""
    expected: str
    """Text that the output must contain."""


@dataclass(frozen=True)
class Framework:
    packages: tuple[str, ...]
    runs: tuple[Run, ...]


TORCHRUN = "e2e/frameworks/jobs/torchrun.py"
FRAMEWORKS = {
    "pytorch": Framework(
        ("torch", "numpy"),
        (
            Run(("examples/pytorch/train.yaml", "e2e/frameworks/jobs/torchrun.yaml"), "rank 5 of 6, sum 21"),
            Run((TORCHRUN, "--nproc=3"), "rank 2 of 3, sum 6"),
            Run((TORCHRUN, "--nproc-per-node=2"), "rank 1 of 2, sum 3"),
            Run((TORCHRUN, "--nnodes=2", "--nproc-per-node=2", "--max-restarts=1"), "rank 3 of 4, sum 10"),
        ),
    ),
    "tensorflow": Framework(
        ("tensorflow-cpu", "numpy"), (Run(("examples/tensorflow/multiworker.yaml",), "worker 1 of 2"),)
    ),
    "paddle": Framework(("paddlepaddle", "numpy"), (Run(("examples/paddle/data_parallel.yaml",), "rank 1 of 2"),)),
    "jax": Framework(("jax", "numpy"), (Run(("examples/jax/data_parallel.yaml",), "step  60 loss 0.00"),)),
    "xgboost": Framework(("xgboost-cpu", "numpy"), (Run(("examples/xgboost/train.yaml",), "step  60 loss 0.0"),)),
}


def environment(name: str, framework: Framework) -> Path:
    """The `bin` directory of the framework's virtual environment, which is created if missing."""
    cache = os.environ.get("TRAINOP_FRAMEWORKS") or Path.home() / ".cache" / "trainop-frameworks"
    folder = Path(cache) / name
    done = folder / ".done"
    if not done.exists():
        print(f"{name}: installing {', '.join(framework.packages)} ...", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *framework.packages, f"{ROOT}[local]"], check=True)
        done.touch()
    return folder / "bin"


def train(name: str, framework: Framework) -> bool:
    """Makes the framework's runs and returns whether all of them trained; prints the logs of those that did not."""
    programs = environment(name, framework)
    package = framework.packages[0]
    query = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    version = subprocess.run(
        [programs / "python", "-c", query], capture_output=True, text=True, check=True
    ).stdout.strip()
    begun = time.monotonic()
    # PYTHONPATH takes precedence over the installed package, so the code of this checkout runs
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    trained = True
    for run in framework.runs:
        done = subprocess.run(
            [programs / "python", "-m", "trainop", "run", *run.arguments],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode != 0 or run.expected not in done.stdout:
            print(f"trainop run {' '.join(run.arguments)}\n{done.stdout}")
            trained = False
    verdict = "trained" if trained else "FAILED"
    print(f"{name}: {verdict} in {time.monotonic() - begun:.0f} s with {package} {version}", flush=True)
    return trained


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.frameworks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FRAMEWORKS))
    names = parser.parse_args().names or list(FRAMEWORKS)
    if unknown := sorted(set(names) - set(FRAMEWORKS)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(FRAMEWORKS)}")
    results = [train(name, FRAMEWORKS[name]) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
