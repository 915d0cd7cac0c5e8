"""Data-parallel training over the network with nothing but what the operator injects into a JAXJob.

COORDINATOR_ADDRESS and COORDINATOR_PORT say where process 0 waits for the others, NUM_PROCESSES how many there are,
PROCESS_ID which one this is. In each step every process computes a gradient on its own share of the data, the gradients
are averaged, and all end with equal weights: with numpy and one TCP connection of each process to process 0.
`data_parallel.py` does it with jax.distributed.

    python -m examples.jax.train [--steps N]
"""

import argparse
import os

from examples.common import Star, train_in_step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    address = os.environ["COORDINATOR_ADDRESS"], int(os.environ["COORDINATOR_PORT"])
    processes, process = int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"])
    print(f"process {process} of {processes}, coordinator at {address[0]}:{address[1]}", flush=True)
    star = Star(address, processes, leads=process == 0)
    train_in_step(process, options.steps, star.mean)


if __name__ == "__main__":
    main()
