"""Real frameworks train under the operator on the embedded cluster, with nothing but what it injects.

python -m e2e.frameworks                    all; the first time this installs several GB
python -m e2e.frameworks jax xgboost        some of them

Each framework has an environment of its own in $TRAINOP_FRAMEWORKS, or ~/.cache/trainop-frameworks. MXNet is absent:
its last release (1.9.1) has no build for a Python that trainop runs on.
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
"""Seconds for one framework's jobs, most of which is spent on importing it."""


@dataclass(frozen=True)
class Framework:
    packages: tuple[str, ...]
    jobs: tuple[str, ...]
    """Files, from the top of the project."""
    proof: str
    """What a log line has to say, beside the jobs' success."""


FRAMEWORKS = {
    "pytorch": Framework(
        ("torch", "numpy"),
        ("examples/pytorch/train.yaml", "e2e/frameworks/jobs/torchrun.yaml"),
        "rank 5 of 6, sum 21",
    ),
    "tensorflow": Framework(
        ("tensorflow-cpu",), ("e2e/frameworks/jobs/multiworker.yaml",), "2 workers, weights 1 2 3 4"
    ),
    "paddle": Framework(("paddlepaddle", "numpy"), ("e2e/frameworks/jobs/paddlelaunch.yaml",), "rank 1 of 2, sum 3"),
    "jax": Framework(("jax", "numpy"), ("examples/jax/train.yaml",), "step  60 loss 0.00"),
    "xgboost": Framework(("xgboost-cpu", "numpy"), ("examples/xgboost/train.yaml",), "step  60 loss 0.0"),
}


def environment(name: str, framework: Framework) -> Path:
    """The folder of the programs of the framework's environment, which is made if it is not there."""
    cache = os.environ.get("TRAINOP_FRAMEWORKS") or Path.home() / ".cache" / "trainop-frameworks"
    place = Path(cache) / name
    done = place / ".done"
    if not done.exists():
        print(f"{name}: installing {', '.join(framework.packages)} ...", flush=True)
        venv.create(place, with_pip=True, clear=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *framework.packages, f"{ROOT}[local]"], check=True)
        done.touch()
    return place / "bin"


def train(name: str, framework: Framework) -> bool:
    """Run the framework's jobs, and tell whether they all trained; their logs only if not."""
    programs = environment(name, framework)
    package = framework.packages[0]
    ask = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    version = subprocess.run(
        [programs / "python", "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    begun = time.monotonic()
    # the tree comes before what was installed from it, so that it is this tree that runs
    surroundings = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [programs / "python", "-m", "trainop", "run", *framework.jobs],
        cwd=ROOT,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    trained = done.returncode == 0 and framework.proof in done.stdout
    if not trained:
        print(done.stdout)
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
