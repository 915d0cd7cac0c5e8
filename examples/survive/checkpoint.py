"""What the loops share: the wish to end, checkpoints in a folder that all pods have, and reports of progress."""

import json
import signal

import numpy as np

from examples.common import FEATURES

try:
    from trainop.progress import report
except ImportError:  # copy trainop/progress.py into the image: it needs the standard library only

    def report(*_step, **_metrics):
        return False


STOPPED = 128 + signal.SIGTERM
"""The exit code of a training that was told to end before it was done."""


class Stop:
    """Whether this rank has been told to end, by one of these signals."""

    def __init__(self, *signals):
        self.asked = False
        for each in signals or [signal.SIGTERM]:
            signal.signal(each, self.ask)

    def ask(self, _signal, _frame):
        self.asked = True


def load(folder):
    """Step and weights of the last checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "checkpoint.json").exists():
        return 0, np.zeros(FEATURES)
    saved = json.loads((folder / "checkpoint.json").read_text())
    print(f"resuming from checkpoint at step {saved['step']}", flush=True)
    return saved["step"], np.array(saved["weights"])


def save(folder, step, weights):
    """Writes a new file and renames it, so that one that is killed meanwhile leaves the old one. Returns the step."""
    new = folder / "checkpoint.new"
    new.write_text(json.dumps({"step": step, "weights": weights.tolist()}))
    new.replace(folder / "checkpoint.json")
    print(f"saved a checkpoint at step {step}", flush=True)
    return step
