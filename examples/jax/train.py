"""Data-parallel training over the network with nothing but what the operator injects into a JAXJob.

COORDINATOR_ADDRESS and COORDINATOR_PORT say where process 0 waits for the others, NUM_PROCESSES how many there are,
PROCESS_ID which one this is. In each step every process computes a gradient on its own share of the data, the gradients
are averaged, and all end with equal weights. With jax installed this is jax.distributed; without it, numpy and one
TCP connection of each process to process 0.

    python -m examples.jax.train [--steps N] [--backend auto|numpy|jax]
"""

import argparse
import importlib.util
import os

import numpy as np

from examples.common import Star, train_in_step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--backend", choices=("auto", "numpy", "jax"), default="auto")
    options = parser.parse_args()
    address = os.environ["COORDINATOR_ADDRESS"], int(os.environ["COORDINATOR_PORT"])
    processes, process = int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"])
    backend = options.backend
    if backend == "auto":
        backend = "jax" if importlib.util.find_spec("jax") else "numpy"
    where = f"{address[0]}:{address[1]}"
    print(f"process {process} of {processes}, coordinator at {where}, backend {backend}", flush=True)
    if backend == "jax":
        mean = jax_mean(where, processes, process)
    else:
        mean = Star(address, processes, leads=process == 0).mean
    train_in_step(process, options.steps, mean)


def jax_mean(coordinator, processes, process):
    """Averages over all processes with JAX's own collectives."""
    import jax  # noqa: PLC0415 - only where it is installed
    from jax.experimental import multihost_utils  # noqa: PLC0415

    jax.distributed.initialize(coordinator, processes, process)
    return lambda numbers: np.asarray(multihost_utils.process_allgather(np.asarray(numbers))).mean(axis=0)


if __name__ == "__main__":
    main()
