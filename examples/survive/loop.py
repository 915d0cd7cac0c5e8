"""A training loop that survives: it reports its progress, saves when it is told to end, and goes on where it was.

    python -m examples.survive.loop [--steps N] [--seconds S] [--every N] [--backend auto|numpy|torch] --checkpoint DIR

Every rank takes part in each step, as in examples/pytorch/train.py: with torch installed by torch.distributed (gloo),
else with numpy. A checkpoint is written every --every steps, and when any rank has got SIGTERM: the ranks tell each
other with the gradients, so that all stop after the same step. Rank 0 then saves, and all exit with 143.

--seconds is how long a step takes at least, because these steps are small.
"""

import argparse
import importlib.util
import os
import pathlib
import sys
import time

import numpy as np

from examples.common import RATE, gradient, report_end, shard
from examples.common import report as print_step
from examples.pytorch.train import NumpyGroup, TorchGroup
from examples.survive.checkpoint import STOPPED, Stop, load, report, save


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--backend", choices=("auto", "numpy", "torch"), default="auto")
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = options.backend
    if backend == "auto":
        backend = "torch" if importlib.util.find_spec("torch") else "numpy"
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # a rank that is lost ends the others, too, and all restart together from the checkpoint
    if backend == "torch":
        importlib.import_module("examples.survive.rendezvous").join()
        group = TorchGroup(rank, world, address)
    else:
        group = NumpyGroup(rank, world, address, rejoin=False)
    code = train(group, rank, options)
    group.close()
    sys.exit(code)


def train(group, rank, options):
    """Returns the exit code."""
    features, targets = shard(rank)
    step, weights = load(options.checkpoint)
    step, weights = group.join(step, weights)  # a rank that joins late takes over those of rank 0
    stop, kept = Stop(), step  # before its first step, a rank has nothing to save
    while step < options.steps:
        began = time.monotonic()
        own, loss = gradient(features, targets, weights)
        average, loss = group.average(step, weights, np.append(own, float(stop.asked)), loss)
        weights, ending = weights - RATE * average[:-1], average[-1] > 0
        step += 1
        print_step(step, loss)
        if rank == 0 and (ending or step % options.every == 0 or step == options.steps):
            kept = save(options.checkpoint, step, weights)
        report(step=step, total=options.steps, force=ending, loss=loss, checkpoint_step=kept)
        if ending:
            print(f"step {step}: told to end", flush=True)
            return STOPPED
        time.sleep(max(0.0, began + options.seconds - time.monotonic()))
    report_end(weights)
    return 0


if __name__ == "__main__":
    main()
