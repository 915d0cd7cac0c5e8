"""paddle.DataParallel over gloo: a linear model, each rank with its own share of the data.

Runs under paddle.distributed.launch, which finds the other nodes by PADDLE_MASTER and PADDLE_NNODES. Before training it
adds up all ranks, and at the end it compares their weights: it fails if a rank is missing, doubled or left behind.

    python -m paddle.distributed.launch --nproc_per_node=1 examples/paddle/data_parallel.py
"""

import sys

import numpy as np
import paddle
import paddle.distributed as dist

sys.path.insert(0, ".")  # Paddle runs this file as a script

from examples.common import FEATURES, report, report_end, shard

STEPS = 60


def main():
    dist.init_parallel_env()
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}, Paddle {paddle.__version__}", flush=True)
    number = paddle.to_tensor([float(rank)])
    dist.all_reduce(number)
    if world < 2 or int(number.item()) != sum(range(world)):
        raise SystemExit(f"the sum of {world} ranks is {number.item()}")
    print(f"sum of the ranks {number.item():g}", flush=True)
    train(rank, world)


def train(rank, world):
    features, targets = (paddle.to_tensor(part.astype("float32")) for part in shard(rank))
    paddle.seed(rank)  # other weights on each rank, which DataParallel replaces by those of rank 0
    model = paddle.DataParallel(paddle.nn.Linear(FEATURES, 1))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for step in range(1, STEPS + 1):
        loss = paddle.nn.functional.mse_loss(model(features)[:, 0], targets)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        report(step, mean.item() / world)
    weights = paddle.concat([each.detach().flatten() for each in model.parameters()])
    total = weights.clone()
    dist.all_reduce(total)
    if not np.allclose(total.numpy() / world, weights.numpy(), atol=1e-5):
        raise SystemExit("the weights of the ranks differ")
    report_end(weights.numpy())


if __name__ == "__main__":
    main()
