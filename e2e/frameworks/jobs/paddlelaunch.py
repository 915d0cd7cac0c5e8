"""All-reduce of rank + 1 over all processes."""

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
number = paddle.to_tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, sum {number.item():g}", flush=True)
