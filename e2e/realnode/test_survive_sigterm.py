"""All ranks of a large job are told to end: how long after the first one the last one hears it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.realnode import small_programs
from e2e.realnode.faults import Restarts, Scene, SmallJob

pytestmark = pytest.mark.images("base")

RANKS = 64
TOGETHER = 1.0
"""Seconds from the first deletion to the last. The kubelet of a busy node may take longer to pass SIGTERM on."""
RATIO = 1.5
"""Where one request that deletes all of them takes longer, the operator may take so much longer than that."""
ENDS: dict[str, Callable[[Scene, SmallJob], object]] = {
    "deleted": lambda scene, _: scene.proof.kubectl(
        "delete", "--raw", f"/api/v1/namespaces/{scene.proof.namespace}/pods"
    ),
    "evicted": lambda scene, job: scene.evict(job.pods[1]),
    "suspended": lambda scene, job: scene.suspend(job, on=True),
}
"""What ends the pods: one request for all, from which the operator has nothing left to do, and the operator."""


def spread(times: list[float]) -> float:
    return max(times) - min(times)


def heard(scene: Scene, job: SmallJob, folder: Path) -> float:
    """Waits until all ranks have written when they got SIGTERM; returns the seconds from the first to the last."""
    files = [folder / name for name in job.pods]
    scene.proof.wait_until(lambda: all(file.exists() and file.read_text() for file in files), "SIGTERM in all ranks")
    times = [float(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return spread(times)


def asked(scene: Scene, runs: int) -> float:
    """Seconds from the first to the last deletion of the newest pods, as they were seen; each rank has had `runs`."""

    def deletions() -> list[float]:
        newest = {each["name"]: each["phases"] for each in scene.proof.timelines()}  # in the order of their creation
        seen = [phase["time"] for phases in newest.values() for phase in phases if phase["phase"] == "Terminating"]
        return seen if len(scene.proof.timelines()) == RANKS * runs and len(seen) == RANKS else []

    return spread(scene.proof.wait_until(deletions, "all deletions are recorded"))


def wait_for_new_pods(scene: Scene, job: SmallJob, before: set[str]) -> None:
    scene.proof.wait_until(lambda: not set(scene.uids(job)) & {"", *before}, "new pods")
    scene.wait_until_all_run(job)


def test_all_ranks_are_told_together(scene: Scene) -> None:
    """64 ranks: all are deleted by one request, one is evicted, the job is suspended"""
    folder = scene.cluster.node.data / "noted" / scene.proof.namespace
    job = SmallJob(
        "JAXJob",
        "OnFailure",
        RANKS,
        program=small_programs.NOTES_SIGTERM,
        pod={"volumes": [{"name": "noted", "hostPath": {"path": f"{folder}", "type": "DirectoryOrCreate"}}]},
        container={"volumeMounts": [{"name": "noted", "mountPath": "/noted"}]},
        annotations={
            "trainop.kubeflow.org/checkpoint-grace": "1m",
            "trainop.kubeflow.org/on-disruption": "checkpoint-all",
        },
    )
    scene.start(job)
    spreads = {}
    for runs, (how, end) in enumerate(ENDS.items(), start=1):
        before = set(scene.uids(job))
        end(scene, job)
        spreads[how] = heard(scene, job, folder), asked(scene, runs)
        if how != "suspended":
            wait_for_new_pods(scene, job, before)
            assert scene.restarts(job) == Restarts(disruptions=runs)
    _, floor = spreads["deleted"]
    allowed = max(TOGETHER, RATIO * floor)
    for how, (told, deleted) in spreads.items():
        scene.proof.expect(
            f"{how}: {RANKS} pods are deleted within {allowed:.1f} s",
            f"the deletions were seen within {deleted:.2f} s; SIGTERM came to the ranks within {told:.2f} s",
        )
        assert deleted <= allowed, spreads
