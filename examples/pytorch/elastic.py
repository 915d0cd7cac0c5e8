"""Elastic training under torchrun: ranks come and go, and training goes on from the newest checkpoint.

torchrun restarts this program on every rank when a rank is lost or joins. Each rank keeps its checkpoint in a folder
of its pod; at the start, the rank with the newest one sends it to all.

    torchrun -m examples.pytorch.elastic [--steps N] [--pause SECONDS] [--folder DIR]

Training ends after N steps, or earlier as soon as a rank finds the file `stop` in its folder.
"""

import argparse
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from examples.pytorch.ddp import dataset, network


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each step")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/checkpoints"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}, PyTorch {torch.__version__}", flush=True)
    checkpoint = Checkpoint(options.folder)
    model = network()
    step = checkpoint.newest(model)
    print(f"starting at step {step} with {world} ranks", flush=True)
    train(DistributedDataParallel(model), step, options, checkpoint)
    dist.destroy_process_group()


def train(model, step, options, checkpoint):
    rank, world = dist.get_rank(), dist.get_world_size()
    points, values = (part[rank::world] for part in dataset().tensors)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while step < options.steps and not any_rank((options.folder / "stop").exists()):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(points), values)
        loss.backward()
        optimizer.step()
        step += 1
        checkpoint.save(step, model.module)
        if step % 5 == 0:
            print(f"step {step:3} loss {loss.item():.6f}", flush=True)
        time.sleep(options.pause)
    print(f"done at step {step} with {world} ranks", flush=True)


def any_rank(found):
    """Whether it is true on any rank, so that all end in the same step."""
    flag = torch.tensor([float(found)])
    dist.all_reduce(flag)
    return flag.item() > 0


class Checkpoint:
    """The step and the weights of this rank in a file."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "weights.pt"

    def newest(self, model):
        """Gives the model the newest weights of any rank and returns their step; 0 if there are none."""
        saved = torch.load(self.path) if self.path.exists() else {"step": 0, "weights": model.state_dict()}
        steps = [None] * dist.get_world_size()
        dist.all_gather_object(steps, saved["step"])
        sent = [saved]
        dist.broadcast_object_list(sent, src=steps.index(max(steps)))
        model.load_state_dict(sent[0]["weights"])
        return sent[0]["step"]

    def save(self, step, model):
        new = self.path.with_suffix(".new")
        torch.save({"step": step, "weights": model.state_dict()}, new)
        new.replace(self.path)


if __name__ == "__main__":
    main()
