"""Data-parallel training over the network with nothing but what the operator injects into a PaddleJob.

PADDLE_NNODES says how many nodes there are and PADDLE_MASTER where they meet: at worker 0, the only one that is told
its own IP. As with paddle.distributed.launch nobody is told its rank: the nodes get theirs where they meet, in the
order in which they come. In each step every rank computes a gradient on its own share of the data, the gradients are
averaged, and all end with equal weights.

    python -m examples.paddle.train [--steps N]
"""

import argparse
import os

from examples.common import Star, endpoint, receive, send, train_in_step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    nodes, master = int(os.environ["PADDLE_NNODES"]), endpoint(os.environ["PADDLE_MASTER"])
    leads = "POD_IP_DUMMY" in os.environ
    star = Star(master, nodes, leads=leads)
    rank = give_ranks(star) if leads else int(receive(star.peers[0])[0])
    print(f"rank {rank} of {nodes} in {os.environ['PADDLE_JOB_ID']}, met at {master[0]}:{master[1]}", flush=True)
    train_in_step(rank, options.steps, star.mean)


def give_ranks(star):
    """The leader is rank 0."""
    for rank, peer in enumerate(star.peers, start=1):
        send(peer, [rank])
    return 0


if __name__ == "__main__":
    main()
