"""`trainop cluster` for clients of others, with a stand-in for torchrun where PyTorch is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.daemons import wait_until
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
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
"""Reads what PyTorch's launcher reads, for one process per node: all find node 0, then the program starts."""


@contextmanager
def embedded_cluster(*flags: str) -> Iterator[Path]:
    """The kubeconfig of `trainop cluster`, which runs meanwhile."""
    with tempfile.TemporaryDirectory(prefix="trainop-client-") as folder:
        programs, data, log = Path(folder, "bin"), Path(folder, "data"), Path(folder, "log")
        programs.mkdir()
        data.mkdir()
        path = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if shutil.which("torchrun") is None:
            (programs / "torchrun").write_text(TORCHRUN)
            (programs / "torchrun").chmod(0o755)
            path.insert(0, str(programs))
        with log.open("wb") as output:
            cluster = subprocess.Popen(
                [sys.executable, "-m", "trainop", "cluster", f"--data={data}", *flags],
                cwd=ROOT,
                env={**os.environ, "PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            started = wait_until(
                lambda: b"export KUBECONFIG" in log.read_bytes() or cluster.poll() is not None, PATIENCE
            )
            if not started or cluster.poll() is not None:
                raise RuntimeError(f"the cluster did not start:\n{log.read_text()}")
            yield data / "kubeconfig"
        finally:
            cluster.terminate()
            cluster.wait(PATIENCE)
