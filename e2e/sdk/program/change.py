"""Calls that change and delete jobs."""

from __future__ import annotations

from kubernetes.client import V1DeleteOptions

from e2e.sdk.program.table import Scene, eventually, expect, raised, same


@expect("update_job", "patches the job")
def _update(scene: Scene) -> None:
    name = scene.name("runs")
    job = scene.client.get_job(name)
    job.metadata.annotations = {**(job.metadata.annotations or {}), "note": "changed"}
    job.metadata.resource_version = None
    scene.client.update_job(job, name)
    same(scene.client.get_job(name).metadata.annotations["note"], "changed")


@expect("update_job", "a job that is suspended loses its pods, and runs again when it is resumed")
def _suspend(scene: Scene) -> None:
    name = scene.name("runs")
    for suspend in (True, False):
        job = scene.client.get_job(name)
        job.spec.run_policy.suspend = suspend
        job.metadata.resource_version = None
        scene.client.update_job(job, name)
        if suspend:
            eventually(lambda: scene.client.get_job_pod_names(name) == [], "the pods are gone")
            eventually(lambda: not scene.client.is_job_running(name), "the job does not run")
    scene.wait("runs", "Running")


@expect("update_job", "raises RuntimeError for a job that does not exist")
def _update_missing(scene: Scene) -> None:
    raised(RuntimeError, lambda: scene.client.update_job(scene.job("missing"), "missing"), scene.kind)


@expect("delete_job", "deletes the job, whose pods follow")
def _delete(scene: Scene) -> None:
    name = scene.name("runs")
    scene.client.delete_job(name)
    eventually(lambda: _is_gone(scene, name), "the job is gone")
    eventually(lambda: scene.client.get_job_pod_names(name) == [], "its pods are gone")


@expect("delete_job(delete_options)", "in the foreground, the job goes after its pods")
def _delete_options(scene: Scene) -> None:
    name = scene.name("ends")
    scene.client.delete_job(name, delete_options=V1DeleteOptions(propagation_policy="Foreground"))
    eventually(lambda: _is_gone(scene, name), "the job is gone")
    same(scene.client.get_job_pod_names(name), [])


@expect("delete_job", "raises RuntimeError for a job that does not exist")
def _delete_missing(scene: Scene) -> None:
    raised(RuntimeError, lambda: scene.client.delete_job("missing"), f"Failed to delete {scene.kind}")
    scene.client.delete_job(scene.name("fails"))


def _is_gone(scene: Scene, name: str) -> bool:
    return name not in {job.metadata.name for job in scene.client.list_jobs()}
