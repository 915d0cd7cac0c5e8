"""Training with a scheduler and servers, as MXNet's ps-lite does, with nothing but what the operator injects.

Everyone finds the scheduler by DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT. Servers tell it where they listen (MX_CONFIG
has their own address), and it tells all who registered where the servers are. Workers then compute gradients on their
own shares of the data and send them to the servers, each of which holds a part of the weights, so that all end with
equal weights. The scheduler ends last, and the job with it.

    python -m examples.mxnet.train [--steps N]
"""

import argparse
import json
import os

from examples.common import connect, listen, serve_parameters, train_with_servers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    role = os.environ["DMLC_ROLE"]
    root = os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"])
    servers, workers = int(os.environ["DMLC_NUM_SERVER"]), int(os.environ["DMLC_NUM_WORKER"])
    print(f"{role}: scheduler at {root[0]}:{root[1]}, {servers} servers, {workers} workers", flush=True)
    if role == "scheduler":
        schedule(root, servers + workers)
    elif role == "server":
        address = own_address()
        with listen(address) as listener, Registration(root, address):
            serve_parameters(listener, workers)
    else:
        with Registration(root) as registration:
            train_with_servers(int(os.environ["DMLC_WORKER_ID"]), options.steps, registration.servers)


def schedule(root, nodes):
    """Introduce everyone to the servers, and wait until all have left."""
    with listen(root) as listener:
        peers = [listener.accept()[0].makefile("rw") for _ in range(nodes)]
    addresses = [json.loads(peer.readline()) for peer in peers]
    servers = json.dumps([address for address in addresses if address])
    print(f"all {nodes} nodes have registered, servers are at {servers}", flush=True)
    for peer in peers:
        print(servers, file=peer, flush=True)
    for peer in peers:
        peer.read()
    print("all nodes have left", flush=True)


class Registration:
    """Being known to the scheduler, as a server if with an address; `servers` are all of them, once all are there."""

    def __init__(self, root, address=None):
        self.scheduler = connect(root)
        with self.scheduler.makefile("rw") as lines:
            print(json.dumps(address), file=lines, flush=True)
            self.servers = json.loads(lines.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.scheduler.close()


def own_address():
    config = json.loads(os.environ["MX_CONFIG"])
    own = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    return own["url"], own["port"]


if __name__ == "__main__":
    main()
