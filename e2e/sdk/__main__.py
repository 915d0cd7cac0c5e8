"""Every call of the Python SDK on the embedded cluster.

python -m e2e.sdk                 all versions of the SDK; the first run installs each, 60 MB
python -m e2e.sdk 1.9.4           a selection
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.daemons import wait_until
from e2e.sdk import ROOT, VERSIONS, command, environment
from tests.patience import PATIENCE

TORCHRUN = f"""#!/bin/sh
'''exec' "{sys.executable}" -u "$0" "$@"
' '''
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
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
os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])
"""
"""Stands in for PyTorch's launcher if PyTorch is not installed: all ranks find rank 0, then the program starts."""


@contextmanager
def embedded_cluster(*flags: str, torchrun: str = TORCHRUN) -> Iterator[Path]:
    """The kubeconfig of `trainop cluster`, which runs meanwhile."""
    with tempfile.TemporaryDirectory(prefix="trainop-sdk-") as folder:
        programs, data, log = Path(folder, "bin"), Path(folder, "data"), Path(folder, "log")
        programs.mkdir()
        data.mkdir()
        path = [str(Path(sys.executable).parent), os.environ["PATH"]]
        if shutil.which("torchrun") is None:
            (programs / "torchrun").write_text(torchrun)
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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.sdk", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(VERSIONS))
    versions = parser.parse_args().versions or VERSIONS
    if unknown := sorted(set(versions) - set(VERSIONS)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(VERSIONS)}")
    results = []
    for version in versions:
        python = environment(version)
        with embedded_cluster() as kubeconfig:
            results.append(subprocess.run(command(python, kubeconfig), check=False).returncode)
    return 1 if any(results) else 0


if __name__ == "__main__":
    sys.exit(main())
