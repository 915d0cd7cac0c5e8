"""An MPI training that survives: as loop.py, with mpi4py.

    mpirun -np 2 python3 -m examples.survive.mpi [--steps N] [--seconds S] [--every N] --checkpoint DIR

mpirun ends its processes at once when it gets SIGTERM, but passes SIGUSR1 on to all of them. The launcher of mpi.yaml
therefore turns the one into the other.
"""

import argparse
import pathlib
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

from examples.common import RATE, gradient, report_end, shard
from examples.common import report as print_step
from examples.survive.checkpoint import STOPPED, Stop, load, report, save


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    sys.exit(train(MPI.COMM_WORLD, Stop(signal.SIGUSR1, signal.SIGTERM), parser.parse_args()))


def train(world, stop, options):
    """Returns the exit code."""
    features, targets = shard(world.rank)
    step, weights = world.bcast(load(options.checkpoint) if world.rank == 0 else None)
    kept = step
    while step < options.steps:
        began = time.monotonic()
        own, loss = gradient(features, targets, weights)
        total = np.array([*own, loss, float(stop.asked)])
        world.Allreduce(MPI.IN_PLACE, total)
        *average, loss, asked = total / world.size
        weights, ending = weights - RATE * np.array(average), asked > 0
        step += 1
        if world.rank == 0:
            print_step(step, loss)
            if ending or step % options.every == 0 or step == options.steps:
                kept = save(options.checkpoint, step, weights)
            report(step=step, total=options.steps, force=ending, loss=loss, checkpoint_step=kept)
        if ending:
            world.Barrier()  # mpirun ends all ranks as soon as one has exited
            if world.rank == 0:
                print(f"step {step}: told to end", flush=True)
            return STOPPED
        time.sleep(max(0.0, began + options.seconds - time.monotonic()))
    if world.rank == 0:
        report_end(weights)
    return 0


if __name__ == "__main__":
    main()
