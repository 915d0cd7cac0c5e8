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

from e2e.embedded import embedded_cluster
from e2e.trainer import command, environment


def main() -> int:
    python, parts = environment(), []
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    if os.geteuid() == 0 and all(shutil.which(each, path=path) for each in ("mpirun", "ssh", "sshd")):
        parts = ["--mpi=deepspeed-distributed"]
    else:
        print("left out: mpi, which needs root, openmpi-bin, openssh-client and openssh-server")
    with embedded_cluster("--train-jobs") as kubeconfig:
        return subprocess.run(command(python, kubeconfig, *parts), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
