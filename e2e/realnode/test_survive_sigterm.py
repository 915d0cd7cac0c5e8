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
"""Seconds from the first SIGTERM to the last."""
RATIO = 1.5
"""On a node that takes longer for one request that deletes all of them, the operator may take so much longer."""
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
        before = scene.uids(job)
        end(scene, job)
        spreads[how] = heard(scene, job, folder), asked(scene, runs)
        if how != "suspended":
            scene.proof.wait_until(lambda gone=before: not set(scene.uids(job)) & {"", *gone}, "new pods")
            scene.wait_until_all_run(job)
            assert scene.restarts(job) == Restarts(disruptions=runs)
    floor, _ = spreads["deleted"]
    allowed = max(TOGETHER, RATIO * floor)
    for how, (told, deleted) in spreads.items():
        scene.proof.expect(
            f"{how}: SIGTERM in {RANKS} ranks within {allowed:.1f} s",
            f"{told:.2f} s from the first to the last; the deletions were seen within {deleted:.2f} s",
        )
        assert told <= allowed, spreads
