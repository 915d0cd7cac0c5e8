"""Training with MXNet's own distributed KVStore: the servers average the gradients of all workers in each step.

`import mxnet` reads DMLC_ROLE: in a scheduler and in a server it serves until all workers have finished, and exits.
A worker fails if the store does not sum up one number of each worker.

    python -m examples.mxnet.kvstore [--steps N]
"""

import argparse
import os

print(f"{os.environ['DMLC_ROLE']}: scheduler at {os.environ['DMLC_PS_ROOT_URI']}", flush=True)

import mxnet as mx  # noqa: E402 - this does not return in servers and the scheduler

from examples.common import FEATURES, RATE, gradient, report, report_end, shard  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    store = mx.kv.create("dist_sync")
    rank, world = store.rank, store.num_workers
    print(f"worker {rank} of {world}, MXNet {mx.__version__}", flush=True)
    total = mean_of(store, "check", [rank]) * world
    if world < 2 or int(total.sum()) != sum(range(world)):
        raise SystemExit(f"the sum of the ranks is {total}")
    print(f"sum of the ranks {sum(range(world))}", flush=True)
    features, targets = shard(rank)
    weights = mx.nd.zeros(FEATURES).asnumpy()
    store.init("gradient", mx.nd.zeros(FEATURES + 1))
    for step in range(1, steps + 1):
        own, loss = gradient(features, targets, weights)
        *average, loss = exchange(store, "gradient", [*own, loss])
        weights = weights - RATE * mx.nd.array(average).asnumpy()
        report(step, float(loss))
    report_end(weights)


def mean_of(store, key, numbers):
    store.init(key, mx.nd.zeros(len(numbers)))
    return exchange(store, key, numbers)


def exchange(store, key, numbers):
    """The mean of what all workers have pushed in this step."""
    store.push(key, mx.nd.array(numbers) / store.num_workers)
    result = mx.nd.zeros(len(numbers))
    store.pull(key, out=result)
    return result.asnumpy()


if __name__ == "__main__":
    main()
