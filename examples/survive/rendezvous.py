"""Meets the other ranks by torch.distributed (gloo), also when they restart in place, one after the other.

A rank that has restarted may find that rank 0 has not: it is still about to end. It would join its store, wait for
peers that are gone, and miss the new ones, for as long as the process group's time-out allows. So every rank signs in
at the store, and one that has signed in there before waits for the next.
"""

import os
import time
from datetime import timedelta

import torch.distributed as dist


def join(timeout=timedelta(minutes=2)):
    """Makes the default process group from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        store = dist.TCPStore(*address, world, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
        if sign_in(store, rank):
            break
        time.sleep(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)


def sign_in(store, rank):
    """Whether the rank is there for the first time."""
    try:
        return store.add(f"rank {rank} is here", 1) == 1
    except dist.DistError:  # the store has just ended
        return False
