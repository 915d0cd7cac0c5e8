"""Calls that find pods and read their logs."""

from __future__ import annotations

import contextlib
import io

from kubernetes.client import V1Pod

from e2e.sdk.program.shapes import LINES
from e2e.sdk.program.table import Scene, eventually, expect, raised, same


def names(scene: Scene, purpose: str) -> list[str]:
    """The pods of a job as its documentation names them: `train-mnist-worker-0`."""
    found = []
    for role, count in scene.shape.roles.items():
        if role == "Launcher":
            found.append(f"{scene.name(purpose)}-launcher")
        else:
            found += [f"{scene.name(purpose)}-{role.lower()}-{index}" for index in range(count)]
    return sorted(found)


def logs_of(scene: Scene, purpose: str, **chosen: object) -> dict[str, str]:
    """What `get_job_logs` returns; 1.7 must be told the container."""
    more = {"container": scene.shape.container} if scene.old else {}
    logs, _events = scene.client.get_job_logs(scene.name(purpose), **more, **chosen)
    return dict(logs)


@expect("get_job_logs(follow)", "follows the log until the container ends, prints and returns it")
def _follow(scene: Scene) -> None:
    master = f"{scene.name('ends')}-{scene.shape.master}"
    scene.client.create_job(job=scene.job("ends"))
    eventually(lambda: master in scene.client.get_job_pod_names(scene.name("ends")), "the pod exists")
    eventually(
        lambda: scene.core.read_namespaced_pod(master, scene.namespace).status.phase != "Pending", "the pod has started"
    )
    with contextlib.redirect_stdout(io.StringIO()) as output:
        logs = logs_of(scene, "ends", follow=True)
    same(logs, {master: "".join(f"line {n}" for n in range(LINES))})
    if not scene.old:
        same(output.getvalue().splitlines(), [f"[Pod {master}]: line {n}" for n in range(LINES)])


@expect("get_job_pods", "returns the pods of the job as objects of their model", since=(1, 8))
def _pods(scene: Scene) -> None:
    pods = scene.client.get_job_pods(scene.name("runs"))
    same({type(pod) for pod in pods}, {V1Pod})
    same(sorted(pod.metadata.name for pod in pods), names(scene, "runs"))


@expect("get_job_pod_names", "returns the names of the pods")
def _names(scene: Scene) -> None:
    eventually(lambda: len(scene.client.get_job_pod_names(scene.name("runs"))) == len(names(scene, "runs")), "all pods")
    same(sorted(scene.client.get_job_pod_names(scene.name("runs"))), names(scene, "runs"))


@expect("get_job_pod_names(is_master)", "chooses the master")
def _master(scene: Scene) -> None:
    found = scene.client.get_job_pod_names(scene.name("runs"), is_master=True)
    same(found, [f"{scene.name('runs')}-{scene.shape.master}"])


@expect("get_job_pod_names(replica_type, replica_index)", "chooses the replicas")
def _replicas(scene: Scene) -> None:
    for role, count in scene.shape.roles.items():
        chosen = {"replica_type": role.lower()}
        same(len(scene.client.get_job_pod_names(scene.name("runs"), **chosen)), count)
    count = scene.shape.roles["Worker"]
    last = scene.client.get_job_pod_names(scene.name("runs"), replica_type="worker", replica_index=count - 1)
    same(last, [f"{scene.name('runs')}-worker-{count - 1}"])


@expect(
    "get_job_pod_names", "raises ValueError for an unknown type of replicas, TimeoutError without an answer in time"
)
def _pod_errors(scene: Scene) -> None:
    raised(ValueError, lambda: scene.client.get_job_pod_names("any", replica_type="driver"), "replica type")
    raised(TimeoutError, lambda: scene.client.get_job_pod_names("any", timeout=0), "Timeout to list pods")
    same(scene.client.get_job_pod_names("missing"), [])


@expect("get_job_logs", "returns the log of the master by default")
def _log(scene: Scene) -> None:
    master = f"{scene.name('runs')}-{scene.shape.master}"
    eventually(lambda: logs_of(scene, "runs") == {master: "line 0\n"}, f"the log of {master}")


@expect("get_job_logs(is_master=False)", "returns the logs of all pods")
def _logs(scene: Scene) -> None:
    expected = dict.fromkeys(names(scene, "runs"), "line 0\n")
    eventually(lambda: logs_of(scene, "runs", is_master=False) == expected, "the logs of all pods")


@expect("get_job_logs(replica_type, replica_index)", "returns the log of one replica")
def _log_of_replica(scene: Scene) -> None:
    chosen = {"is_master": False, "replica_type": "worker", "replica_index": 0}
    same(list(logs_of(scene, "runs", **chosen)), [f"{scene.name('runs')}-worker-0"])


@expect("get_job_logs", "returns the logs of pods that have ended")
def _log_of_ended(scene: Scene) -> None:
    scene.wait("ends")
    master = f"{scene.name('ends')}-{scene.shape.master}"
    same(logs_of(scene, "ends")[master], "".join(f"line {n}\n" for n in range(LINES)))


@expect("get_job_logs(verbose)", "also returns the events of the job", since=(1, 8))
def _events(scene: Scene) -> None:
    def events() -> list[str]:
        _logs, found = scene.client.get_job_logs(scene.name("fails"), verbose=True)
        return list(found.get(f"{scene.kind.lower()}/{scene.name('fails')}", ()))

    eventually(lambda: any("fail" in event for event in events()), "an event that the job has failed")
