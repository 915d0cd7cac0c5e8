"""Data-parallel training with mpi4py: each rank has its own share of the data, gradients are averaged by Allreduce.

It fails if there is one rank only, or if ranks end with different weights. `mpirun` starts it:

    mpirun -np 2 python3 examples/mpi/train.py
"""

import pathlib
import sys

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))  # mpirun runs this file as a script

from examples.common import RATE, gradient, report, report_end, shard

STEPS = 60

world = MPI.COMM_WORLD
hosts = sorted(set(world.allgather(MPI.Get_processor_name())))
library = MPI.Get_library_version().split(",")[0].splitlines()[0].rstrip("\0")
# One write, as mpirun mixes the output of ranks, and an unbuffered print writes the end of the line apart.
print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}, {library}\n", end="", flush=True)
if len(hosts) < 2:
    raise SystemExit(f"all ranks are on {hosts}")
features, targets = shard(world.rank)
weights = np.zeros(features.shape[1])
for step in range(1, STEPS + 1):
    own, loss = gradient(features, targets, weights)
    total = np.append(own, loss)
    world.Allreduce(MPI.IN_PLACE, total)
    total /= world.size
    weights = weights - RATE * total[:-1]
    if world.rank == 0:
        report(step, total[-1])
if len(set(world.allgather(weights.tobytes()))) != 1:
    raise SystemExit("the weights of the ranks differ")
if world.rank == 0:
    print(f"{world.size} ranks on {' '.join(hosts)}", flush=True)
    report_end(weights)
