"""Linear regression with tf.distribute: each worker has its own data, gradients are averaged."""

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]))
data = tf.random.stateless_normal([64, 4], [1, strategy.cluster_resolver.task_id])
targets = tf.matmul(data, tf.constant([[1.0], [2.0], [3.0], [4.0]]))


def average_gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(data, weights) - targets) ** 2)
    return tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))


@tf.function
def gradient():
    return strategy.run(average_gradient)


for _ in range(60):
    weights.assign_sub(0.2 * strategy.experimental_local_results(gradient())[0])
trained = " ".join(f"{weight:.2g}" for weight in weights.numpy().ravel())
print(f"{strategy.num_replicas_in_sync} workers, weights {trained}", flush=True)
