"""Computes pi with MPI: `pi.py openmpi` or `pi.py mpich`, started by `mpirun`. Needs no package but the MPI library."""

import ctypes
import os
import socket
import sys

ROUNDS, INTERVALS = 50, 10_000


class World:
    """All ranks, by the C interface of MPI."""

    def __init__(self, implementation):
        if implementation == "openmpi":  # handles are pointers to objects of the library
            self.mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
            names = ("ompi_mpi_comm_world", "ompi_mpi_double", "ompi_mpi_op_sum")
            self.world, self.double, self.total = (ctypes.byref(ctypes.c_byte.in_dll(self.mpi, name)) for name in names)
        else:  # handles are numbers
            self.mpi = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
            self.world, self.double, self.total = map(ctypes.c_int, (0x44000000, 0x4C00080B, 0x58000003))
        self.mpi.MPI_Init(None, None)
        rank, size = ctypes.c_int(), ctypes.c_int()
        self.mpi.MPI_Comm_rank(self.world, ctypes.byref(rank))
        self.mpi.MPI_Comm_size(self.world, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def sum(self, mine):
        """The sum of all ranks' values."""
        value, result = ctypes.c_double(mine), ctypes.c_double()
        self.mpi.MPI_Allreduce(ctypes.byref(value), ctypes.byref(result), 1, self.double, self.total, self.world)
        return result.value

    def end(self):
        """Waits for all ranks."""
        self.mpi.MPI_Barrier(self.world)
        if (launcher := os.environ.get("PMI_FD")) is not None:
            wait_by_launcher(int(launcher))
        self.mpi.MPI_Finalize()


def wait_by_launcher(descriptor):
    """A barrier of MPICH's launcher, which uses no connection between ranks.

    Without it, about one run in six never ends with MPICH before 4.2 over UCX: a rank that is in MPI_Finalize already,
    and whose connections are closed, answers no rank that closes them after it (github.com/pmodels/mpich/pull/6596).
    After this barrier, no rank still waits for a message.
    """
    with os.fdopen(descriptor, "r+b", buffering=0, closefd=False) as pmi:
        pmi.write(b"cmd=barrier_in\n")
        pmi.readline()


world = World(sys.argv[1])
# One write, as mpirun mixes the output of ranks, and an unbuffered print writes the end of the line apart.
print(f"rank {world.rank} of {world.size} on {socket.gethostname()}\n", end="", flush=True)
pi, step = 0.0, 1 / (ROUNDS * INTERVALS)
for part in range(ROUNDS):  # of the integral of 4 / (1 + x²) from 0 to 1, this part in equal shares
    own = range(part * INTERVALS + world.rank, (part + 1) * INTERVALS, world.size)
    pi += world.sum(step * sum(4 / (1 + ((i + 0.5) * step) ** 2) for i in own))
if world.rank == 0:
    print(f"pi is {pi:.8f}", flush=True)
world.end()
