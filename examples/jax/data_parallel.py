"""Data-parallel training with jax.distributed: one array sharded over all processes, gradients added up by XLA.

All it knows of the others are COORDINATOR_ADDRESS, COORDINATOR_PORT, NUM_PROCESSES and PROCESS_ID. Before training it
adds up the numbers of all processes, and at the end it compares their weights: it fails if one is missing or doubled.

    python -m examples.jax.data_parallel [--steps N]
"""

import argparse
import os
from functools import partial

import jax
import numpy as np
from jax import numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from examples.common import RATE, report, report_end, shard


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}",
        int(os.environ["NUM_PROCESSES"]),
        int(os.environ["PROCESS_ID"]),
    )
    process, processes = jax.process_index(), jax.process_count()
    print(f"process {process} of {processes}, JAX {jax.__version__}", flush=True)
    check_psum(processes)
    train(process, steps)
    jax.distributed.shutdown()


def check_psum(processes):
    devices = jax.local_device_count()
    number = jnp.full((devices,), float(jax.process_index()))
    total = jax.pmap(partial(jax.lax.psum, axis_name="all"), axis_name="all")(number)
    if processes < 2 or int(total[0]) != devices * sum(range(processes)):
        raise SystemExit(f"psum of the process numbers is {total}")
    print(f"psum of the processes {sum(range(processes))}", flush=True)


def train(process, steps):
    """The batch is sharded over all devices and the weights are copied to each, so that their gradient is a sum over
    all processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    batch = tuple(
        multihost_utils.host_local_array_to_global_array(part.astype("float32"), mesh, PartitionSpec("data"))
        for part in shard(process)
    )
    everywhere = NamedSharding(mesh, PartitionSpec())

    def loss_of(weights, features, targets):
        return jnp.mean((features @ weights - targets) ** 2)

    @partial(jax.jit, out_shardings=(everywhere, everywhere))
    def update(weights, features, targets):
        loss, gradient = jax.value_and_grad(loss_of)(weights, features, targets)
        return weights - RATE * gradient, loss

    weights = np.zeros(batch[0].shape[1], "float32")
    for step in range(1, steps + 1):
        weights, loss = update(weights, *batch)
        report(step, float(loss))
    own = np.asarray(weights.addressable_data(0))
    multihost_utils.assert_equal(own, "the weights of the processes differ")
    report_end(own)


if __name__ == "__main__":
    main()
