"""tf.distribute.MultiWorkerMirroredStrategy: each worker has its own share of the data, gradients are all-reduced.

All it knows of the others is TF_CONFIG. Before training it adds up one number of each worker: it fails if one is
missing or doubled.

    python -m examples.tensorflow.multiworker [--steps N]
"""

import argparse

import tensorflow as tf

from examples.common import FEATURES, RATE, report, report_end, shard


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before everything else of TensorFlow
    worker, workers = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    print(f"worker {worker} of {workers}, TensorFlow {tf.__version__}", flush=True)
    with strategy.scope():
        weights = tf.Variable(tf.zeros([FEATURES]))
    features, targets = (tf.constant(part, tf.float32) for part in shard(worker))

    def average(*numbers):
        context = tf.distribute.get_replica_context()
        return [context.all_reduce("mean", number) for number in numbers]

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(features, weights) - targets) ** 2)
        return average(tape.gradient(loss, weights), loss)

    train_step = tf.function(lambda: strategy.run(gradient))
    mean = strategy.run(average, args=(tf.constant(float(worker)),))[0]
    if workers < 2 or round(float(mean) * workers) != sum(range(workers)):
        raise SystemExit(f"the mean of {workers} workers' numbers is {float(mean)}")
    print(f"sum of the workers {sum(range(workers))}", flush=True)
    for step in range(1, steps + 1):
        slope, loss = train_step()
        weights.assign_sub(RATE * slope)
        report(step, float(loss))
    report_end(weights.numpy())


if __name__ == "__main__":
    main()
