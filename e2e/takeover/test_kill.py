"""An operator is killed while it creates the children of a large job, and the other one continues."""

from __future__ import annotations

import signal

from e2e.cluster.daemons import wait_until
from e2e.takeover.scenes import Scene, Stage
from e2e.takeover.test_takeover import broken_laws
from e2e.takeover.theatre import Theatre
from tests.patience import PATIENCE
from tests.server.process import Operator
from trainop.programs.schemes import FRAMEWORKS

WORKERS = 50
COUNTS = {"Master": 1, "Worker": WORKERS}
BEGUN = 8


def names(job: str) -> set[str]:
    return {f"{job}-master-0", *(f"{job}-worker-{index}" for index in range(WORKERS))}


def kill_midway(stage: Stage, operator: Operator, job: str) -> dict[str, str]:
    """Kills the operator while it creates the pods of a new job; returns the UIDs of the children that exist."""
    stage.create_scene(Scene(job, counts=COUNTS))
    assert wait_until(lambda: len(stage.pods_of(job)) >= BEGUN, PATIENCE, every=0.01)
    operator.end(signal.SIGKILL)
    children = uids(stage, job)
    assert len(children) < 2 * len(names(job)), "the killed operator had work left"
    return children


def uids(stage: Stage, job: str) -> dict[str, str]:
    kinds = {"Pod": stage.pods(), "Service": stage.services()}
    return {
        f"{kind} {name}": child["metadata"]["uid"]
        for kind, children in kinds.items()
        for name, child in children.items()
        if name in names(job)
    }


def wait_complete(stage: Stage, job: str) -> None:
    def complete() -> bool:
        return names(job) <= set(stage.pods_of(job)) and names(job) <= set(stage.services())

    stage.wait(complete, f"all children of {job}")
    stage.wait_condition("Running", job)
    stage.wait(
        lambda: stage.status(job)["replicaStatuses"].get("Worker", {}).get("active") == WORKERS,
        "all pods to be counted",
    )


def test_killed_while_it_creates_a_job(theatre: Theatre) -> None:
    stage = Stage(theatre.api, FRAMEWORKS["PyTorchJob"])
    slow = () if theatre.peer.endswith("1.7") else ("--kube-api-qps=20", "--kube-api-burst=20")
    old, new = theatre.old(*slow), theatre.new("--kube-api-qps=20", "--kube-api-burst=20")
    old.start()
    begun = kill_midway(stage, old, "j")
    new.start()
    wait_complete(stage, "j")
    assert begun.items() <= uids(stage, "j").items()

    begun = kill_midway(stage, new, "k")
    old.start()
    wait_complete(stage, "k")
    assert begun.items() <= uids(stage, "k").items()
    old.end()

    for kind in ("Pod", "Service"):
        theatre.recorders[kind].sync()
        assert set(theatre.recorders[kind].created().values()) == {1}, "nothing was created twice"
    assert list(broken_laws(theatre)) == []
