"""All-reduce of rank + 1 over all processes."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(number)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, sum {number.item()}", flush=True)
dist.destroy_process_group()
