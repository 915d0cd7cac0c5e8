"""The SDK of Kubeflow Trainer, as it is, on the embedded cluster.

python -m e2e.trainer             the first run installs the SDK, 110 MB

If there is a `torchrun`, it trains; otherwise a stand-in starts the processes. The runtimes of MPI need root, and
Debian's packages openmpi-bin, openssh-client and openssh-server; without them, that part is left out, and the output
says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from e2e.sdk.__main__ import embedded_cluster
from e2e.trainer import command, environment

TORCHRUN = f"""#!/bin/sh
'''exec' "{sys.executable}" -u "$0" "$@"
' '''
import os, socket, sys, time
rank, size = int(os.environ["PET_NODE_RANK"]), int(os.environ["PET_NNODES"])
host, port = os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"])
if rank == 0:
    server = socket.create_server(("", port))
    peers = [server.accept() for _ in range(size - 1)]
else:
    while True:
        try:
            peer = socket.create_connection((host, port))
            break
        except OSError:
            time.sleep(0.2)
os.environ |= {{"RANK": str(rank), "WORLD_SIZE": str(size)}}
os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])
"""
"""Stands in for PyTorch's launcher with one process per node: all find node 0, then the program starts."""


def main() -> int:
    python, parts = environment(), []
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    if os.geteuid() == 0 and all(shutil.which(each, path=path) for each in ("mpirun", "ssh", "sshd")):
        parts = ["mpi"]
    else:
        print("left out: mpi, which needs root, openmpi-bin, openssh-client and openssh-server")
    with embedded_cluster("--train-jobs", torchrun=TORCHRUN) as kubeconfig:
        return subprocess.run(command(python, kubeconfig, *parts), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
