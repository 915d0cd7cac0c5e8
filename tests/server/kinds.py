"""Jobs of every kind on the real API server: a namespace for jobs of one kind, and a table of expectations per kind."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.cluster.api import Api
from tests.server.world import CORE, MERGE, Json, World
from trainop.engine.framework import Framework

GROUP = "/apis/kubeflow.org/v1"
NUMBERS = itertools.count(1)


class KindWorld(World):
    """A namespace for jobs of one kind, with requests in terms of that kind."""

    def __init__(self, api: Api, framework: Framework, namespace: str | None = None) -> None:
        """Create a new namespace unless an existing one is given."""
        if namespace is None:
            super().__init__(api, f"{framework.name}{next(NUMBERS)}")
        else:
            self.api, self.namespace = api, namespace
        self.framework = framework
        self.jobs = f"{GROUP}/namespaces/{{namespace}}/{framework.resource.plural}"

    def body(self, name: str, roles: Mapping[str, Json], **spec: Any) -> Json:
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": self.framework.kind,
            "metadata": {"name": name},
            "spec": {**REQUIRED.get(self.framework.kind, {}), self.framework.replica_specs: dict(roles), **spec},
        }

    def role(self, count: int, restart: str | None = None, **container: Any) -> Json:
        one = {"name": self.framework.container, "image": "none", **container}
        policy = {} if restart is None else {"restartPolicy": restart}
        return {"replicas": count, **policy, "template": {"spec": {"containers": [one]}}}

    def create(self, name: str, counts: Mapping[str, int], restart: str | None = None, **spec: Any) -> Json:
        """Create a job with `counts` replicas per role."""
        roles = {type_: self.role(count, restart) for type_, count in counts.items()}
        created: Json = self.ask("POST", self.jobs, self.body(name, roles, **spec))
        return created

    def job(self, name: str = "j") -> Json:
        job: Json = self.ask("GET", f"{self.jobs}/{name}")
        return job

    def patch_job(self, spec: Json, name: str = "j") -> Json:
        patched: Json = self.ask("PATCH", f"{self.jobs}/{name}", {"spec": spec}, MERGE)
        return patched

    def describe(self) -> str:
        states = {job["metadata"]["name"]: job.get("status") for job in self.ask("GET", self.jobs)["items"]}
        return f"pods {sorted(self.pods())}, jobs {states}"

    def pods_of(self, name: str) -> dict[str, Json]:
        """The pods of one job, without terminating ones."""
        selector = f"training.kubeflow.org/job-name={name}"
        found = self.ask("GET", f"{CORE}/pods?labelSelector={selector}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}

    def warnings_about(self, name: str) -> list[Json]:
        selector = f"type=Warning,involvedObject.kind={self.framework.kind},involvedObject.name={name}"
        events: list[Json] = self.ask("GET", f"{CORE}/events?fieldSelector={selector}")["items"]
        return events

    def set_pod(self, name: str, status: Json) -> None:
        """Write a pod status as the kubelet would, for the kind's main container."""
        for container in status.get("containerStatuses") or ():
            container["name"] = self.framework.container
        super().set_pod(name, status)


REQUIRED: dict[str, Json] = {"MXJob": {"jobMode": "MXTrain"}}
"""Required fields of a kind's spec other than the replicas."""


@dataclass(frozen=True)
class Row:
    """Expectations of one kind, in the namespace `{ns}` with jobs `j` (succeeds) and `f` (fails)."""

    counts: dict[str, int]
    pod: str
    """The replica whose environment is compared, such as `worker-1`."""
    variables: dict[str, str]
    """All environment variables that the operator adds to it."""
    leaders: tuple[str, ...]
    """The replicas with the label job-role=master."""
    ends: tuple[str, ...]
    """The replicas whose success makes the job succeed."""
    running: str
    succeeded: str
    fails: str
    """The replica whose failure fails the job."""
    failed: str
    port: tuple[str, int]
    scale: bool = False
    ended: str = "Pod"
    """Suffix of the reason of the event about a job deleted after its time to live."""

    def names(self, job: str) -> list[str]:
        """The names of the pods of a job with these counts."""
        return [f"{job}-{role.lower()}-{index}" for role, count in self.counts.items() for index in range(count)]


ROWS: dict[str, Row] = {
    "TFJob": Row(
        counts={"Chief": 1, "PS": 1, "Worker": 2, "Evaluator": 1},
        pod="worker-1",
        variables={
            "TF_CONFIG": '{"cluster":{"chief":["j-chief-0.{ns}.svc:2222"],"evaluator":["j-evaluator-0.{ns}.svc:2222"],'
            '"ps":["j-ps-0.{ns}.svc:2222"],"worker":["j-worker-0.{ns}.svc:2222","j-worker-1.{ns}.svc:2222"]},'
            '"task":{"type":"worker","index":1},"environment":"cloud"}'
        },
        leaders=("chief-0",),
        ends=("chief-0",),
        running="TFJob {ns}/j is running.",
        succeeded="TFJob {ns}/j successfully completed.",
        fails="ps-0",
        failed="TFJob {ns}/f has failed because 1 PS replica(s) failed.",
        port=("tfjob-port", 2222),
        ended="Job",
    ),
    "PyTorchJob": Row(
        counts={"Master": 1, "Worker": 2},
        pod="worker-1",
        variables={
            "PYTHONUNBUFFERED": "1",
            "MASTER_PORT": "23456",
            "PET_MASTER_PORT": "23456",
            "MASTER_ADDR": "j-master-0",
            "PET_MASTER_ADDR": "j-master-0",
            "WORLD_SIZE": "3",
            "RANK": "2",
            "PET_NODE_RANK": "2",
            "PET_NPROC_PER_NODE": "auto",
            "PET_NNODES": "3",
        },
        leaders=("master-0",),
        ends=("master-0",),
        running="PyTorchJob j is running.",
        succeeded="PyTorchJob j is successfully completed.",
        fails="worker-0",
        failed="PyTorchJob f is failed because 1 Worker replica(s) failed.",
        port=("pytorchjob-port", 23456),
        scale=True,
    ),
    "MXJob": Row(
        counts={"Scheduler": 1, "Server": 1, "Worker": 2},
        pod="worker-1",
        variables={
            "MX_CONFIG": '{"cluster":{"scheduler":[{"url":"j-scheduler-0","port":9091}],'
            '"server":[{"url":"j-server-0","port":9091}],'
            '"worker":[{"url":"j-worker-0","port":9091},{"url":"j-worker-1","port":9091}]},'
            '"labels":{"scheduler":"","server":"","worker":""},"task":{"type":"worker","index":1}}',
            "DMLC_PS_ROOT_PORT": "9091",
            "DMLC_PS_ROOT_URI": "j-scheduler-0",
            "DMLC_NUM_SERVER": "1",
            "DMLC_NUM_WORKER": "2",
            "DMLC_ROLE": "worker",
            "DMLC_USE_KUBERNETES": "1",
            "DMLC_WORKER_ID": "1",
        },
        leaders=("server-0",),
        ends=("scheduler-0",),
        running="MXJob j is running.",
        succeeded="MXJob j is successfully completed.",
        fails="server-0",
        failed="mxjob f is failed because 1 Server replica(s) failed.",
        port=("mxjob-port", 9091),
    ),
    "XGBoostJob": Row(
        counts={"Master": 1, "Worker": 2},
        pod="worker-0",
        variables={
            "MASTER_PORT": "9999",
            "MASTER_ADDR": "j-master-0",
            "WORLD_SIZE": "3",
            "RANK": "1",
            "PYTHONUNBUFFERED": "1",
            "WORKER_PORT": "9999",
            "WORKER_ADDRS": "j-worker-0,j-worker-1",
        },
        leaders=("master-0",),
        ends=("master-0",),
        running="XGBoostJob j is running.",
        succeeded="XGBoostJob j is successfully completed.",
        fails="worker-1",
        failed="XGBoostJob f is failed because 1 Worker replica(s) failed.",
        port=("xgboostjob-port", 9999),
        ended="Job",
    ),
    "PaddleJob": Row(
        counts={"Worker": 2},
        pod="worker-0",
        variables={
            "PYTHONUNBUFFERED": "1",
            "PADDLE_JOB_ID": "j",
            "PADDLE_NNODES": "2",
            "POD_IP_DUMMY": "status.podIP",
            "PADDLE_MASTER": "$(POD_IP_DUMMY):36543",
        },
        leaders=(),
        ends=("worker-0", "worker-1"),
        running="PaddleJob {ns}/j is running.",
        succeeded="PaddleJob {ns}/j successfully completed.",
        fails="worker-1",
        failed="PaddleJob f is failed because 1 Worker replica(s) failed.",
        port=("master", 36543),
        scale=True,
    ),
    "JAXJob": Row(
        counts={"Worker": 3},
        pod="worker-2",
        variables={
            "PYTHONUNBUFFERED": "1",
            "COORDINATOR_PORT": "6666",
            "COORDINATOR_ADDRESS": "j-worker-0",
            "NUM_PROCESSES": "3",
            "PROCESS_ID": "2",
        },
        leaders=("worker-0",),
        ends=("worker-0", "worker-1", "worker-2"),
        running="JAXJob {ns}/j is running.",
        succeeded="JAXJob {ns}/j successfully completed.",
        fails="worker-1",
        failed="JAXJob f is failed because 1 Worker replica(s) failed.",
        port=("jaxjob-port", 6666),
        scale=True,
    ),
}
