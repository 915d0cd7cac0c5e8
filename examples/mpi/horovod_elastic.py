"""Elastic Horovod with PyTorch: training goes on when workers come and go.

Horovod starts the function again on all ranks whenever their number changes, with the state of a rank that has stayed.

    horovodrun -np 2 --min-np 1 --max-np 3 --slots-per-host 1 --host-discovery-script /etc/mpi/discover_hosts.sh \\
        python3 examples/mpi/horovod_elastic.py [--steps N] [--pause SECONDS]

Training ends after N steps, or earlier as soon as a rank finds the file /tmp/stop.
"""

import argparse
import pathlib
import socket
import sys
import time

import horovod
import horovod.torch as hvd
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))  # Horovod runs this file as a script

from examples.common import FEATURES, RATE, report_end, shard

STOP = pathlib.Path("/tmp/stop")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / 10)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train(hvd.elastic.TorchState(model, optimizer, step=0), options)


@hvd.elastic.run
def train(state, options):
    versions = f"Horovod {horovod.__version__}, PyTorch {torch.__version__}"
    say(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()} from step {state.step}, {versions}")
    features, targets = (torch.tensor(part, dtype=torch.float32) for part in shard(hvd.rank()))
    while state.step < options.steps and not any_rank(STOP.exists()):
        state.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(state.model(features)[:, 0], targets)
        loss.backward()
        state.optimizer.step()
        state.step += 1
        mean = hvd.allreduce(loss.detach(), name="loss").item()
        if hvd.rank() == 0 and state.step % 5 == 0:
            say(f"step {state.step:3} loss {mean:.6f} with {hvd.size()} ranks")
        state.commit()  # also finds out whether the number of workers is to change
        time.sleep(options.pause)
    if hvd.rank() == 0:
        report_end(state.model.weight.detach().numpy())


def any_rank(found):
    """Whether it is true on any rank, so that all end in the same step."""
    return hvd.allreduce(torch.tensor(float(found)), name="stop").item() > 0


def say(text):
    """One write, as the output of ranks is mixed, and an unbuffered print writes the end of the line apart."""
    print(f"{text}\n", end="", flush=True)


if __name__ == "__main__":
    main()
