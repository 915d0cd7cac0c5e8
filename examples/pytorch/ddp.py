"""DistributedDataParallel over gloo: a small network learns a function, each rank from its own share of the data.

All it knows of the others are RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Before training it adds up all ranks, and
at the end it compares the weights of all of them: it fails if a rank is missing, doubled or left behind.

    python -m examples.pytorch.ddp [--steps N]
"""

import argparse
import hashlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}, PyTorch {torch.__version__}", flush=True)
    check_ranks(rank, world)
    model = DistributedDataParallel(network())
    losses = train(model, rank, steps)
    check_weights(model, world)
    if losses[-1] > losses[0] / 10:
        raise SystemExit(f"the loss only fell from {losses[0]:.4f} to {losses[-1]:.4f}")
    # A model that outlives its process group ends it with the GIL held, and waits for a thread that may need the GIL.
    del model
    dist.destroy_process_group()


def network():
    """Every rank starts from other weights, which DistributedDataParallel replaces by those of rank 0."""
    return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def dataset(samples=1024):
    """Points and the values of a function there; the same on all ranks."""
    points = torch.rand(samples, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return TensorDataset(points, torch.sin(3 * points[:, :1]) * points[:, 1:])


def check_ranks(rank, world):
    numbers = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(numbers, torch.tensor([float(rank)]))
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    seen = sorted(int(number) for number in numbers)
    if world < 2 or seen != list(range(world)) or int(total) != sum(range(world)):
        raise SystemExit(f"the ranks are {seen}, their sum {int(total)}")
    print(f"ranks {seen}, sum {int(total)}", flush=True)


def train(model, rank, steps):
    """The loss of each step, averaged over all ranks."""
    data = dataset()
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses, epoch = [], 0
    while len(losses) < steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for points, values in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(points), values)
            loss.backward()
            optimizer.step()
            mean = loss.detach()
            dist.all_reduce(mean)
            losses.append(mean.item() / dist.get_world_size())
            if rank == 0 and len(losses) % 10 in {0, 1}:
                print(f"step {len(losses):3} loss {losses[-1]:.6f}", flush=True)
    return losses


def check_weights(model, world):
    """All ranks hold the same weights, bit by bit."""
    data = torch.cat([weights.detach().flatten() for weights in model.parameters()]).numpy().tobytes()
    digests = [None] * world
    dist.all_gather_object(digests, hashlib.sha256(data).hexdigest()[:16])
    if len(set(digests)) != 1:
        raise SystemExit(f"the weights differ: {digests}")
    print(f"done: weights {digests[0]}", flush=True)


if __name__ == "__main__":
    main()
