"""Runs MPI programs with real MPI on the embedded cluster, each pod with its own network.

python -m e2e.mpi                       Open MPI and MPICH, over ssh and by kubectl exec, and the jobs of examples/mpi
python -m e2e.mpi ssh-openmpi           a selection

It installs nothing, and names what is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster.packages import advice, lacking
from e2e.cluster.places import ClusterError, binary
from e2e.mpi.objects import LAUNCHER, NAMES, NAMESPACE, TRANSPORTS, WORKERS
from trainop.local.cluster import ClusterOptions, LocalCluster
from trainop.local.node.agent import SandboxError
from trainop.runtime.objects.metadata import CONFIG_MAPS, PODS, SECRETS, SERVICE_ACCOUNTS, SERVICES, Json

ROOT = Path(__file__).parents[2]
PATIENCE = 120
"""Timeout in seconds for one job."""
PROGRAMS = {"mpirun.openmpi": "openmpi-bin", "mpirun.mpich": "mpich", "ssh": "openssh-client", "sshd": "openssh-server"}
"""The Debian package of each program."""
PYTHON = "/usr/bin/python3"
"""The interpreter of Debian's package python3-mpi4py."""
PI = "pi is 3.14159265"
EXAMPLES = {
    "run-ssh": ("examples/mpi/ssh.yaml", PI),
    "run-exec": ("examples/mpi/exec.yaml", PI),
    "run-mpich": ("examples/mpi/mpich.yaml", PI),
    "run-script": ("examples/mpi/pi.py --kind mpi --nproc 2 -- openmpi", PI),
    "run-mpi4py": ("examples/mpi/mpi4py.yaml", "the sum is 190, computed by 2 hosts"),
}
"""What `trainop run` is given for each example, and what its output contains."""
PRIVILEGED = {"run-ssh", "run-script", "run-mpich", "run-mpi4py"}
"""Their sshd listens on port 22."""
CASES = [
    *(f"{transport}-{implementation}" for transport in TRANSPORTS for implementation in ("openmpi", "mpich")),
    *EXAMPLES,
]
RESOURCES = {resource.kind: resource for resource in (CONFIG_MAPS, PODS, SECRETS, SERVICES, SERVICE_ACCOUNTS)}
FINISHED = {"Succeeded", "Failed"}


def missing(*left_out: str) -> str:
    """One line on what this machine lacks, of these packages aside; empty if it has everything."""
    wanted = [package for package in lacking(PROGRAMS) if package not in left_out]
    if subprocess.run([PYTHON, "-c", "import mpi4py.MPI"], capture_output=True, check=False).returncode != 0:
        wanted.append("python3-mpi4py")
    if wanted:
        return advice(wanted)
    if shutil.which("kubectl") is None:
        try:
            os.environ["PATH"] += f"{os.pathsep}{binary('kubectl').parent}"
        except ClusterError as error:
            return str(error)
    return ""


async def until(cluster: LocalCluster, name: str, phases: set[str]) -> Json:
    """The pod in one of these phases, for "Running" also ready; or after the timeout, in whatever phase."""
    end = time.monotonic() + PATIENCE
    while True:
        pod = await cluster.client.get(PODS, name, NAMESPACE)
        status = pod["status"]
        ready = all(one["ready"] for one in status.get("containerStatuses") or ())
        if (status["phase"] in phases and (ready or status["phase"] != "Running")) or time.monotonic() > end:
            return pod
        await asyncio.sleep(0.05)


def run_example(case: str) -> bool:
    """Whether `trainop run` has run an MPIJob; prints its output if not."""
    begun = time.monotonic()
    arguments, expected = EXAMPLES[case]
    command = [sys.executable, "-m", "trainop", "run", "--network", "namespaces", *arguments.split()]
    # after the timeout, SIGTERM ends the job in the orderly way, so that its output is complete
    command = ["timeout", str(PATIENCE), *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    good = done.returncode == 0 and expected in done.stdout
    print(f"{case}: {'ok' if good else 'FAILED'} after {time.monotonic() - begun:.1f} s", flush=True)
    if not good:
        print(done.stdout, done.stderr, sep="\n")
    return good


async def run(case: str) -> bool:
    """Whether the job has computed pi on all workers; prints the logs if not."""
    transport, implementation = case.split("-")
    begun = time.monotonic()
    async with LocalCluster(ClusterOptions(network="namespaces")) as cluster:
        for each in TRANSPORTS[transport](implementation):
            if each["metadata"]["name"] == LAUNCHER and each["kind"] == "Pod":
                for name in NAMES:
                    await until(cluster, name, {"Running", *FINISHED})
            await cluster.client.create(
                RESOURCES[each["kind"]], {**each, "metadata": {**each["metadata"], "namespace": NAMESPACE}}
            )
        pod = await until(cluster, LAUNCHER, FINISHED)
        out = log_of(cluster, LAUNCHER)
        wanted = [f"rank {rank} of {WORKERS} on {name}" for rank, name in enumerate(NAMES)]
        good = pod["status"]["phase"] == "Succeeded" and all(line in out for line in [*wanted, PI])
        print(f"{case}: {'ok' if good else 'FAILED'} after {time.monotonic() - begun:.1f} s", flush=True)
        if not good:
            for name in (LAUNCHER, *NAMES):
                print(f"--- log of {name}\n{log_of(cluster, name)}")
    return good


def log_of(cluster: LocalCluster, name: str) -> str:
    path = cluster.node.log_file(NAMESPACE, name, "mpi")
    return path.read_text(errors="replace") if path is not None else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Real MPI on the embedded cluster.")
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    cases = parser.parse_args().cases or CASES
    if unknown := set(cases).difference(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if lacks := missing():
        print(lacks, file=sys.stderr)
        return 3
    if os.geteuid() != 0:
        cases = [case for case in cases if case not in PRIVILEGED]
    try:
        results = [run_example(case) if case in EXAMPLES else asyncio.run(run(case)) for case in cases]
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 3
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
