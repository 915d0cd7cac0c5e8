"""How much later than with torchrun a script begins under `trainop run`.

python -m e2e.frameworks.start [--pairs 10] [--most 1.0]     exit code 1 if it is more than so many seconds (median)

Both start four processes of the same script, one after the other in each pair, from the same environment with PyTorch
(`python -m e2e.frameworks pytorch` makes it). The time is that from the start of the program to the first line of the
script.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.frameworks.__main__ import FRAMEWORKS, PATIENCE, ROOT, environment

PROCESSES = 4
LINE = "the script begins"


def first_line(command: Sequence[str], folder: Path, path: str) -> float:
    """Seconds until the script prints; the program is then awaited."""
    began, found = time.monotonic(), None
    ours = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(folder / "state")}
    variables = {**os.environ, **ours, "PATH": path}
    with subprocess.Popen(
        command, cwd=folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        too_late = threading.Timer(PATIENCE, process.kill)
        too_late.start()
        said = []
        for line in process.stdout:
            said.append(line)
            if found is None and LINE in line:
                found = time.monotonic() - began
        too_late.cancel()
    if process.returncode != 0 or found is None:
        raise SystemExit(f"{command[0]} ended with {process.returncode}:\n{''.join(said)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.frameworks.start", description="How soon a script begins.")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--most", type=float, default=1.0, help="seconds later than with torchrun (1.0)")
    options = parser.parse_args()
    programs = environment("pytorch", FRAMEWORKS["pytorch"])
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    torchrun = [str(programs / "torchrun"), f"--nproc-per-node={PROCESSES}", "train.py"]
    trainop = [str(programs / "python"), "-m", "trainop", "run", "train.py", f"--nproc={PROCESSES}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(f"print({LINE!r}, flush=True)\n")
        pairs = []
        for _ in range(options.pairs + 1):  # the first pair warms up
            pairs.append((first_line(torchrun, folder, path), first_line(trainop, folder, path)))
            print(f"torchrun {pairs[-1][0]:.2f} s, trainop run {pairs[-1][1]:.2f} s", flush=True)
    later = statistics.median(ours - theirs for theirs, ours in pairs[1:])
    print(
        f"the first line comes {later:+.2f} s after torchrun's in the median of {options.pairs}; at most {options.most}"
    )
    return int(later > options.most)


if __name__ == "__main__":
    sys.exit(main())
