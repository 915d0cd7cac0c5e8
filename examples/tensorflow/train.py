"""Training with parameter servers over the network with nothing but what the operator injects into a TFJob.

TF_CONFIG names all tasks and says which one this is. The tasks of type `ps` hold the weights, each a part of them;
`chief` and `worker` compute gradients on their own shares of the data, send them there, and get new weights back, so
that all end with equal weights. As with TensorFlow, a parameter server never ends by itself: the job succeeds with its
chief, and its clean-up ends the servers.

    python -m examples.tensorflow.train [--steps N]
"""

import argparse
import json
import os
import pathlib

from examples.common import endpoint, listen, serve_parameters, train_with_servers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    cluster, task = read_config()
    servers = [endpoint(server) for server in cluster["ps"]]
    trainers = [(type_, index) for type_ in ("chief", "worker") for index in range(len(cluster.get(type_, ())))]
    print(f"{task['type']} {task['index']}: {len(servers)} servers, {len(trainers)} trainers", flush=True)
    if task["type"] == "ps":
        with listen(servers[task["index"]]) as listener:
            while True:
                serve_parameters(listener, len(trainers))
    train_with_servers(trainers.index((task["type"], task["index"])), options.steps, servers)


def read_config():
    """All tasks by type, and this one; of a very large job TF_CONFIG has the path of a file instead of the tasks."""
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = config["cluster"]
    if isinstance(cluster, str):
        cluster = json.loads(pathlib.Path(cluster).read_text())
    return cluster, config["task"]


if __name__ == "__main__":
    main()
