"""tf.distribute.ParameterServerStrategy: a chief schedules steps on workers, which read and write variables on servers.

TF_CONFIG tells each task what it is. The evaluator has no connection to the others: it reads the weights that the chief
saves in a shared folder. The chief fails if the variables are not spread over all servers, and ends when the evaluator
has seen the last weights.

    python -m examples.tensorflow.parameter_servers --checkpoints DIR
"""

import argparse
import os
import pathlib
import time

os.environ["GRPC_FAIL_FAST"] = "use_caller"  # as TensorFlow's guide to parameter servers recommends

import numpy as np
import tensorflow as tf

from examples.common import FEATURES, RATE, report, report_end, shard

STEPS = 60
PATIENCE = 240.0
"""Seconds for which the chief waits for the evaluator."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    folder = parser.parse_args().checkpoints
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    resolver = without_evaluator(resolver)
    print(f"{resolver.task_type} {resolver.task_id}, TensorFlow {tf.__version__}", flush=True)
    if resolver.task_type in {"worker", "ps"}:
        cluster = resolver.cluster_spec()
        tf.distribute.Server(cluster, job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc").join()
    elif resolver.task_type == "evaluator":
        evaluate(folder)
    else:
        for old in folder.glob("*.np*"):
            old.unlink()
        coordinate(resolver, folder)


def without_evaluator(resolver):
    """TF_CONFIG of a TFJob also has the address of the evaluator, for which the chief would wait forever."""
    tasks = {type_: addresses for type_, addresses in resolver.cluster_spec().as_dict().items() if type_ != "evaluator"}
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(tasks), task_type=resolver.task_type, task_id=resolver.task_id, rpc_layer="grpc"
    )


def coordinate(resolver, folder):
    """Train synchronously: one step of each worker at a time."""
    tasks = resolver.cluster_spec()
    servers, workers = tasks.num_tasks("ps"), tasks.num_tasks("worker")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        parts = [tf.Variable(tf.zeros([len(part)])) for part in np.array_split(np.zeros(FEATURES), servers)]
    places = sorted({part.device.split("/replica")[0] + "/" + part.device.split("/")[3] for part in parts})
    if len(places) != servers:
        raise SystemExit(f"the weights of {servers} servers are on {places}")
    print(f"{workers} workers, weights on {' '.join(places)}", flush=True)
    shards = [[tf.constant(part, tf.float32) for part in shard(number)] for number in range(workers)]

    @tf.function
    def train_step(features, targets):
        with tf.GradientTape() as tape:
            predicted = tf.linalg.matvec(features, tf.concat([part.read_value() for part in parts], 0))
            loss = tf.reduce_mean((predicted - targets) ** 2)
        for part, slope in zip(parts, tape.gradient(loss, parts), strict=True):
            part.assign_sub(RATE / workers * slope)
        return loss

    for step in range(1, STEPS + 1):
        losses = [coordinator.schedule(train_step, args=tuple(each)) for each in shards]
        coordinator.join()
        report(step, float(np.mean([loss.fetch() for loss in losses])))
        if step % 20 == 0:
            save(folder / f"step-{step}.npy", np.concatenate([part.numpy() for part in parts]))
    report_end(np.concatenate([part.numpy() for part in parts]))
    end = time.monotonic() + PATIENCE
    while not (folder / f"evaluation-{STEPS}.npy").exists():
        if time.monotonic() > end:
            raise SystemExit("the evaluator has not evaluated the last weights")
        time.sleep(0.1)


def evaluate(folder):
    """The loss of each saved version of the weights on data that no worker has."""
    features, targets = shard(1_000_000)
    seen = {}
    while True:
        for path in sorted(folder.glob("step-*.npy")):
            step = int(path.stem.removeprefix("step-"))
            try:
                if seen.get(step) == (version := path.stat().st_mtime_ns):
                    continue
                weights = np.load(path)
            except FileNotFoundError:  # the chief has started again
                continue
            seen[step] = version
            loss = np.mean((features @ weights - targets) ** 2)
            print(f"evaluation of step {step}: {loss:.6f}", flush=True)
            save(folder / f"evaluation-{step}.npy", loss)
        time.sleep(0.1)


def save(path, numbers):
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        np.save(file, numbers)
    fresh.replace(path)


if __name__ == "__main__":
    main()
