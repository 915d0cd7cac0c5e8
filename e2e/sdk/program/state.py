"""Calls that read jobs and their conditions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from e2e.sdk.program.shapes import model
from e2e.sdk.program.table import POLL, Scene, eventually, expect, raised, same

NOTHING = dict.fromkeys(("created", "running", "restarting", "succeeded", "failed"), False)


@expect("get_job", "returns the job as an object of its model")
def _get(scene: Scene) -> None:
    job = scene.client.get_job(scene.name("runs"))
    same(type(job), model(scene.shape))
    same((job.kind, job.metadata.name, job.metadata.namespace), (scene.kind, scene.name("runs"), scene.namespace))
    same(type(job.metadata.creation_timestamp), datetime)
    specs = getattr(job.spec, scene.shape.replica_specs)
    same({role: one.replicas for role, one in specs.items()}, dict(scene.shape.roles))
    for one in specs.values():
        same(one.template.spec.containers[0].command[0], "python")


@expect("get_job", "raises RuntimeError for a job that does not exist")
def _missing(scene: Scene) -> None:
    raised(RuntimeError, lambda: scene.client.get_job("missing"), f"Failed to get {scene.kind}")


@expect("get_job", "raises ValueError for an unknown kind", since=(1, 8))
def _unknown_kind(scene: Scene) -> None:
    raised(ValueError, lambda: scene.client.get_job("any", job_kind="SparkJob"), "Job kind")


@expect("get_job, list_jobs", "raise TimeoutError when the API server does not answer in time")
def _timeout(scene: Scene) -> None:
    raised(TimeoutError, lambda: scene.client.get_job(scene.name("runs"), timeout=0), "Timeout to get")
    raised(TimeoutError, lambda: scene.client.list_jobs(timeout=0), "Timeout to list")


@expect("list_jobs", "lists the jobs of this kind in the namespace")
def _list(scene: Scene) -> None:
    jobs = scene.client.list_jobs()
    same({type(job) for job in jobs}, {model(scene.shape)})
    expected = {scene.name(purpose) for purpose in ("runs", "ends", "fails")}
    same({job.metadata.name for job in jobs}, expected)


@expect("list_jobs", "returns an empty list in a namespace without jobs", since=(1, 8))
def _list_elsewhere(scene: Scene) -> None:
    same(scene.client.list_jobs(namespace="kube-public"), [])


@expect("get_job_conditions", "returns an empty list before there are conditions", since=(1, 9))
def _no_conditions(scene: Scene) -> None:
    job = scene.job("foreign")
    job.spec.run_policy.managed_by = "kueue.x-k8s.io/multikueue"
    scene.client.create_job(job=job)
    same(scene.client.get_job_conditions(scene.name("foreign")), [])
    same(scene.condition(scene.name("foreign")), NOTHING)
    scene.client.delete_job(scene.name("foreign"))


@expect("wait_for_job_conditions", "returns the job when it has one of the expected conditions")
def _created(scene: Scene) -> None:
    job = scene.wait("runs", "Created", "Restarting")
    same((type(job), scene.client.is_job_created(job=job)), (model(scene.shape), True))


@expect("wait_for_job_conditions", "gives the callback the job after each poll")
def _running(scene: Scene) -> None:
    seen: list[Any] = []
    job = scene.wait("runs", "Running", callback=seen.append)
    same({type(one) for one in seen}, {model(scene.shape)})
    same(seen[-1] is job, True)


@expect("is_job_*", "a job whose pods run is Created and Running")
def _is_running(scene: Scene) -> None:
    same(scene.condition(scene.name("runs")), {**NOTHING, "created": True, "running": True})


@expect("get_job_conditions", "returns reason, message and times of each condition")
def _conditions(scene: Scene) -> None:
    conditions = {one.type: one for one in scene.client.get_job_conditions(scene.name("runs"))}
    conditions.pop("Stalled", None)
    same(set(conditions), {"Started", "Created", "Running"})
    for one in conditions.values():
        same(one.status, "True")
        same(one.reason, "AllReplicasStarted" if one.type == "Started" else f"{scene.kind}{one.type}")
        same((bool(one.message), type(one.last_transition_time)), (True, datetime))


@expect("wait_for_job_conditions", "raises TimeoutError when the condition does not come")
def _wait_timeout(scene: Scene) -> None:
    call = {"expected_conditions": {"Succeeded"}, "wait_timeout": 1, "polling_interval": POLL}
    raised(
        TimeoutError,
        lambda: scene.client.wait_for_job_conditions(scene.name("runs"), **call),
        "to reach expected conditions",
    )


@expect("wait_for_job_conditions", "raises ValueError for an unknown condition")
def _unknown_condition(scene: Scene) -> None:
    raised(ValueError, lambda: scene.wait("runs", "Sleeping"), "must be subset of")


@expect("wait_for_job_conditions", "raises RuntimeError when the job fails instead")
def _fails(scene: Scene) -> None:
    raised(RuntimeError, lambda: scene.wait("fails"), "is Failed")


@expect("wait_for_job_conditions", "returns a failed job if that is expected", since=(1, 8))
def _failure_expected(scene: Scene) -> None:
    job = scene.wait("fails", "Failed")
    same(scene.client.is_job_failed(job=job), True)


@expect("is_job_*", "a failed job is Created and Failed")
def _is_failed(scene: Scene) -> None:
    same(scene.condition(scene.name("fails")), {**NOTHING, "created": True, "failed": True})


@expect("wait_for_job_conditions", "waits for Restarting, which `is_job_restarting` shows")
def _restarting(scene: Scene) -> None:
    client = scene.client
    client.create_job(job=scene.job("restarts"))
    job = scene.wait("restarts", "Restarting")
    same((client.is_job_restarting(job=job), client.is_job_running(job=job)), (True, False))
    client.delete_job(scene.name("restarts"))


@expect("is_job_*", "a job that has succeeded is Created and Succeeded")
def _succeeds(scene: Scene) -> None:
    job = scene.wait("ends")
    same(scene.client.is_job_succeeded(job=job), True)
    same(scene.condition(scene.name("ends")), {**NOTHING, "created": True, "succeeded": True})
    same(type(job.status.completion_time), datetime)


@expect("get_job", "shows the states of the replicas")
def _replica_statuses(scene: Scene) -> None:
    def running() -> dict[str, int | None]:
        statuses = scene.client.get_job(scene.name("runs")).status.replica_statuses or {}
        return {role: one.active for role, one in statuses.items()}

    eventually(lambda: running() == dict(scene.shape.roles), f"all replicas are active: {running()}")


@expect("is_job_*, wait_for_job_conditions", "a job that has stalled still runs")
def _stalled(scene: Scene) -> None:
    def stalled() -> bool:
        conditions = scene.client.get_job(scene.name("runs")).status.conditions or []
        return any((one.type, one.status, one.reason) == ("Stalled", "True", "NoProgress") for one in conditions)

    eventually(stalled, "the condition Stalled")
    same(scene.condition(scene.name("runs")), {**NOTHING, "created": True, "running": True})
    same(scene.client.is_job_running(job=scene.wait("runs", "Running")), True)
