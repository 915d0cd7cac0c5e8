"""How soon a standby works after the leader has released its lease, as in every upgrade, beside a real kube-apiserver.

python -m e2e.bench.handover [--jobs 500] [--times 5]      some minutes; exit code 1 if one takes longer than a second

Two operators hold the same jobs in their caches. The leader is ended by SIGTERM, and a job is created while nobody
leads. The time is that from the release of the lease to the first pod of the job; then the ended operator is started
again as the next standby.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from e2e.bench.processes import exit_on_sigterm
from e2e.clients import on_an_api_server
from e2e.cluster.controlplane import ControlPlane
from tests.server.process import OPERATORS, Operator
from tests.server.test_election import LEASE, holder
from tests.server.world import CORE, JOBS, World, replicas

ROOT = Path(__file__).parents[2]
MOST = 1.0
"""Seconds."""
PODS, THREADS = 4, 8
KIND = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}


def create(world: World, name: str, pods: int) -> None:
    spec = {"pytorchReplicaSpecs": {"Worker": replicas(pods)}}
    world.ask("POST", JOBS, {**KIND, "metadata": {"name": name}, "spec": spec})


def prepare(plane: ControlPlane, folder: Path, jobs: int) -> tuple[World, list[Operator]]:
    """The jobs with all their pods, a leader and a standby, in this order."""
    crd = yaml.safe_load((ROOT / "manifests" / "crds" / "pytorchjobs.kubeflow.org.yaml").read_text(encoding="utf-8"))
    assert plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).status == 201
    world = World(plane.api, "bench")
    flags = ("--enable-scheme=PyTorchJob", "--leader-elect", "--leader-election-namespace=bench")
    leader, standby = (
        Operator(folder / f"{name}.log", f"--kubeconfig={plane.kubeconfig}", *flags) for name in ("one", "two")
    )
    leader.start()
    world.wait(lambda: holder(world), "a leader")
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda number: create(world, f"j{number}", PODS), range(jobs)))
    world.wait(lambda: len(world.pods()) == jobs * PODS, "the pods")
    standby.start()
    return world, [leader, standby]


def hand_over(world: World, leader: Operator, name: str) -> float:
    """Seconds from the release of the lease to the first pod of a job that was created while nobody led."""
    assert leader.process is not None
    leader.process.terminate()
    while holder(world):
        time.sleep(0.002)
    released = time.monotonic()
    create(world, name, 1)
    while world.try_to("GET", f"{CORE}/pods/{name}-worker-0").status != 200:
        time.sleep(0.002)
    taken = time.monotonic() - released
    assert leader.exit_code() == 0, leader.text()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.handover", description=f"Of the lease {LEASE}.")
    parser.add_argument("--jobs", type=int, default=500, help=f"of {PODS} pods (500)")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()

    def work(plane: ControlPlane, folder: Path) -> int:
        try:
            world, (leader, standby) = prepare(plane, folder, options.jobs)
            found = []
            for number in range(options.times):
                found.append(hand_over(world, leader, f"n{number}"))
                print(f"{found[-1]:.2f} s from the release of the lease to the first pod of a new job", flush=True)
                leader.start()
                leader, standby = standby, leader
            print(f"median {statistics.median(found):.2f} s, longest {max(found):.2f} s, at most {MOST} s")
            return int(max(found) > MOST)
        finally:
            for operator in filter(lambda each: each.running, OPERATORS):
                operator.end()

    exit_on_sigterm()
    return on_an_api_server("bench-handover", work)


if __name__ == "__main__":
    sys.exit(main())
