"""Data-parallel training with Horovod and PyTorch: each rank has its own share of the data, gradients are averaged.

It fails if there is one host only, if a rank is missing or doubled, or if ranks end with different weights:

    mpirun -np 2 python3 examples/mpi/horovod_train.py
"""

import pathlib
import socket
import sys

import horovod
import horovod.torch as hvd
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))  # mpirun runs this file as a script

from examples.common import FEATURES, RATE, report, report_end, shard

STEPS = 60

torch.set_num_threads(1)
hvd.init()
hosts = hvd.allgather_object(socket.gethostname())
ranks = hvd.allgather_object(hvd.rank())
versions = f"Horovod {horovod.__version__}, PyTorch {torch.__version__}"
# One write, as mpirun mixes the output of ranks, and an unbuffered print writes the end of the line apart.
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}, {versions}\n", end="", flush=True)
if len(set(hosts)) < 2 or sorted(ranks) != list(range(hvd.size())):
    raise SystemExit(f"the ranks {ranks} are on {hosts}")
features, targets = (torch.tensor(part, dtype=torch.float32) for part in shard(hvd.rank()))
torch.manual_seed(hvd.rank())  # other weights on each rank, which are replaced by those of rank 0
model = torch.nn.Linear(FEATURES, 1, bias=False)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(features)[:, 0], targets)
    loss.backward()
    optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss").item()
    if hvd.rank() == 0:
        report(step, mean)
weights = model.weight.detach().numpy()
if len(set(hvd.allgather_object(weights.tobytes()))) != 1:
    raise SystemExit("the weights of the ranks differ")
if hvd.rank() == 0:
    report_end(weights)
