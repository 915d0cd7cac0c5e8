"""All ranks of a large job are told to end: how long after the first one the last one hears it."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.realnode import small_programs
from e2e.realnode.faults import Restarts, Scene, SmallJob

pytestmark = pytest.mark.images("base")

RANKS = 64
TOGETHER = 1.0
"""Seconds from the first SIGTERM to the last."""


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
    """64 ranks: one is evicted, then the job is suspended"""
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
    before = scene.start(job)
    scene.evict(job.pods[1])
    evicted = heard(scene, job, folder), asked(scene, 1)
    scene.proof.wait_until(lambda: not set(scene.uids(job)) & {"", *before}, "new pods")
    scene.wait_until_all_run(job)
    assert scene.restarts(job) == Restarts(disruptions=1)
    scene.suspend(job, on=True)
    suspended = heard(scene, job, folder), asked(scene, 2)
    for how, (told, deleted) in {"evicted": evicted, "suspended": suspended}.items():
        scene.proof.expect(
            f"{how}: SIGTERM in {RANKS} ranks within {TOGETHER:.0f} s",
            f"{told:.2f} s from the first to the last; the deletions were seen within {deleted:.2f} s",
        )
        assert told <= TOGETHER, (how, told, deleted)
