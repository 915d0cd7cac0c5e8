"""Collective operations of mpi4py between two ranks or more: scatter, reduce, gather."""

from mpi4py import MPI

world = MPI.COMM_WORLD
# One write, as mpirun mixes the output of ranks, and an unbuffered print writes the end of the line apart.
print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}\n", end="", flush=True)

rows = [list(range(10 * rank, 10 * rank + 10)) for rank in range(world.size)] if world.rank == 0 else None
mine = world.scatter(rows)
total = world.allreduce(sum(mine))
hosts = world.gather(MPI.Get_processor_name())
if world.rank == 0:
    print(f"the sum is {total}, computed by {len(set(hosts))} hosts", flush=True)
