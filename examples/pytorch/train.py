"""Data-parallel training over the network with nothing but what the operator injects.

Every rank holds its own share of a synthetic regression problem. In each step all ranks compute a gradient on their
share, the gradients are averaged over MASTER_ADDR:MASTER_PORT, and every rank applies the same update, so that all
end with equal weights. With torch installed this is torch.distributed (gloo); without it the same is done with numpy
and one TCP connection per worker to rank 0.

    python -m examples.pytorch.train [--steps N] [--backend auto|numpy|torch] [--checkpoint DIR] [--fail-once RANK:STEP]

--checkpoint saves step and weights after every step, so that a restarted rank goes on where it was (numpy backend);
--fail-once makes one rank exit with 137, as if it had been killed, the first time it reaches that step.
"""

import argparse
import contextlib
import importlib.util
import os
import pathlib
import sys

import numpy as np

from examples.common import FEATURES, RATE, connect, gradient, listen, receive, report, report_end, send, shard


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--backend", choices=("auto", "numpy", "torch"), default="auto")
    parser.add_argument("--checkpoint", type=pathlib.Path)
    parser.add_argument("--fail-once", metavar="RANK:STEP")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    backend = options.backend
    if backend == "auto":
        backend = "torch" if importlib.util.find_spec("torch") else "numpy"
    print(f"rank {rank} of {world}, rendezvous at {address[0]}:{address[1]}, backend {backend}", flush=True)
    group = {"torch": TorchGroup, "numpy": NumpyGroup}[backend](rank, world, address)
    train(group, rank, options)
    group.close()


def train(group, rank, options):
    features, targets = shard(rank)
    checkpoint = Checkpoint(options.checkpoint, rank)
    step, weights = checkpoint.load()
    # a rank that joins late takes over the step and the weights of rank 0
    step, weights = group.join(step, weights)
    while step < options.steps:
        if options.fail_once == f"{rank}:{step}" and checkpoint.first_time(step):
            print(f"step {step}: exiting with 137, as if killed", flush=True)
            sys.exit(137)
        average, loss = group.average(step, weights, *gradient(features, targets, weights))
        weights = weights - RATE * average
        step += 1
        checkpoint.save(step, weights)
        report(step, loss)
    report_end(weights)


class Checkpoint:
    """Step and weights of one rank in a file; without a folder nothing is kept."""

    def __init__(self, folder, rank):
        self.folder, self.path = folder, folder and folder / f"rank-{rank}.npz"
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def load(self):
        if not self.path or not self.path.exists():
            return 0, np.zeros(FEATURES)
        with np.load(self.path) as saved:
            print(f"resuming from checkpoint at step {saved['step']}", flush=True)
            return int(saved["step"]), saved["weights"]

    def save(self, step, weights):
        if self.path:
            new = self.path.with_suffix(".new.npz")
            np.savez(new, step=step, weights=weights)
            new.replace(self.path)

    def first_time(self, step):
        """True once per step and folder: whether this was done before is remembered across restarts."""
        if not self.folder:
            return True
        try:
            (self.folder / f"failed-{self.path.stem}-{step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class TorchGroup:
    """The ranks through torch.distributed, gloo."""

    def __init__(self, rank, world, address):
        import torch.distributed  # noqa: PLC0415 - only where it is installed

        self.torch, self.dist = torch, torch.distributed
        if not self.dist.is_initialized():
            self.dist.init_process_group("gloo")
        self.world = world

    def join(self, step, weights):
        return step, weights

    def average(self, step, weights, gradient, loss):
        packed = self.torch.tensor([*gradient, loss], dtype=self.torch.float64)
        self.dist.all_reduce(packed)
        packed = packed.numpy() / self.world
        return packed[:-1], float(packed[-1])

    def close(self):
        self.dist.destroy_process_group()


class NumpyGroup:
    """The ranks as a star: rank 0 listens, adds up, and answers; a worker that was restarted may join again, unless
    `rejoin` is false: then all ranks fail when one is lost, as with torch."""

    def __init__(self, rank, world, address, rejoin=True):
        self.rank, self.world, self.peers, self.rejoin = rank, world, {}, rejoin
        if rank == 0:
            self.listener = listen(address)
        else:
            self.master = connect(address)

    def join(self, step, weights):
        if self.rank == 0:
            return step, weights
        send(self.master, np.array([self.rank]))
        step, *weights = receive(self.master)
        return int(step), np.array(weights)

    def average(self, step, weights, gradient, loss):
        own = np.append(gradient, loss)
        if self.rank:
            send(self.master, own)
            total = receive(self.master)
        else:
            total = own + sum(self.from_worker(rank, step, weights) for rank in range(1, self.world))
            for peer in self.peers.values():
                # one that died after its share was in joins again in the next step
                with contextlib.suppress(OSError):
                    send(peer, total)
        return total[:-1] / self.world, float(total[-1]) / self.world

    def from_worker(self, rank, step, weights):
        """The share of one worker; if its connection breaks, wait until it has been restarted and ask again."""
        while True:
            while rank not in self.peers:
                peer, _ = self.listener.accept()
                joined = int(receive(peer)[0])
                send(peer, np.array([step, *weights]))
                self.peers[joined] = peer
            try:
                return receive(self.peers[rank])
            except (EOFError, OSError):
                if not self.rejoin:
                    raise
                print(f"lost rank {rank} in step {step}: waiting for it to come back", flush=True)
                del self.peers[rank]

    def close(self):
        for peer in self.peers.values():
            peer.close()


if __name__ == "__main__":
    main()
