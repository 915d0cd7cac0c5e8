"""The MPIJobs that exist when an operator is replaced: what has happened to them, and what happens later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from e2e.cluster.api import Api
from e2e.takeover.observers import NODE, WAITING
from tests.server.world import CORE, MERGE, Json, World
from trainop.engine.framework import JOB_NAME
from trainop.kinds.mpi.transport import EXEC, MPI_V1, MPI_V2, SSH

VERSIONS = {EXEC: MPI_V1.api_version, SSH: MPI_V2.api_version}
MANAGED_ELSEWHERE = "kueue.x-k8s.io/multikueue"


class MpiStage(World):
    """A namespace with the MPIJobs of one transport, which clients write in the version of its Go operator."""

    def __init__(self, api: Api, namespace: str, transport: str) -> None:
        self.transport = transport
        self.jobs = f"/apis/{VERSIONS[transport]}/namespaces/{{namespace}}/mpijobs"
        super().__init__(api, namespace)

    def create_scene(self, scene: MpiScene) -> None:
        specs = {"Launcher": self._role(scene, 1), "Worker": self._role(scene, scene.workers)}
        specs["Launcher"]["restartPolicy"] = scene.restart
        spec = {"runPolicy": dict(scene.run_policy), "mpiReplicaSpecs": specs, **scene.spec}
        version = VERSIONS[self.transport]
        body = {"apiVersion": version, "kind": "MPIJob", "metadata": {"name": scene.name}, "spec": spec}
        self.ask("POST", self.jobs, body)

    def _role(self, scene: MpiScene, count: int) -> Json:
        pod = {"nodeName": NODE, "containers": [{"name": "mpi", "image": "none"}]}
        metadata = {"annotations": {WAITING: "Unschedulable"}} if scene.waits else {}
        return {"replicas": count, "template": {"metadata": metadata, "spec": pod}}

    def job(self, name: str = "j") -> Json:
        job: Json = self.ask("GET", f"{self.jobs}/{name}")
        return job

    def patch_job(self, spec: Json, name: str = "j") -> Json:
        patched: Json = self.ask("PATCH", f"{self.jobs}/{name}", {"spec": spec}, MERGE)
        return patched

    def pods_of(self, name: str) -> dict[str, Json]:
        """The pods of one job, terminating ones included."""
        found = self.ask("GET", f"{CORE}/pods?labelSelector={JOB_NAME}={name}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def living(self, name: str) -> dict[str, str]:
        """Name -> phase of the pods that neither terminate nor have ended."""
        return {
            pod: each["status"]["phase"]
            for pod, each in self.pods_of(name).items()
            if "deletionTimestamp" not in each["metadata"] and each["status"]["phase"] in {"Pending", "Running"}
        }

    def launcher(self, name: str) -> str:
        """The living pod of the launcher; its name is random with transport ssh."""
        prefix = f"{name}-launcher"
        found: str = self.wait(
            lambda: next((pod for pod in self.living(name) if pod.startswith(prefix)), ""), f"the launcher of {name}"
        )
        return found

    def workers(self, name: str) -> int:
        """The number of workers in the spec."""
        count: int = self.job(name)["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        return count

    def counts(self, name: str) -> dict[str, dict[str, int]]:
        """Role -> the counters of its status."""
        found = self.status(name).get("replicaStatuses", {})
        kept = ("active", "succeeded", "failed")
        return {role: {key: n for key, n in each.items() if key in kept} for role, each in found.items()}

    def wait_active(self, name: str) -> None:
        """Wait until all pods run and are counted, and the job has the condition Running."""
        count = self.workers(name)
        workers = {f"{name}-worker-{index}" for index in range(count)}

        def running() -> bool:
            phases = self.living(name)
            return set(phases.values()) == {"Running"} and len(phases) == count + 1 and workers < phases.keys()

        self.wait(running, f"all pods of {name} to run")
        self.wait_condition("Running", name)
        self.wait(
            lambda: (
                {role: each.get("active", 0) for role, each in self.counts(name).items()}
                == {"Launcher": 1, "Worker": count}
            ),
            f"all pods of {name} to be counted",
        )

    def set_pod(self, name: str, status: Json) -> None:
        for each in status.get("containerStatuses") or ():
            each["name"] = "mpi"
        super().set_pod(name, status)

    def describe(self) -> str:
        pods = {name: pod["status"]["phase"] for name, pod in self.pods().items()}
        jobs = {job["metadata"]["name"]: job.get("status") for job in self.ask("GET", self.jobs)["items"]}
        return f"pods {pods}, jobs {jobs}"

    def file(self, name: str, key: str) -> str:
        """A file of the job's ConfigMap."""
        text: str = self.ask("GET", f"{CORE}/configmaps/{name}-config")["data"][key]
        return text


Step: TypeAlias = Callable[[MpiStage, str], None]


def runs(stage: MpiStage, name: str) -> None:
    stage.wait_active(name)


def waits(stage: MpiStage, name: str) -> None:
    stage.wait_condition("Created", name)
    stage.wait(lambda: len(stage.living(name)) >= stage.workers(name), f"the pods of {name}")


def starts(stage: MpiStage, name: str) -> None:
    """The pods need not wait any more, also those that are created later."""
    workers = {f"{name}-worker-{index}" for index in range(stage.workers(name))}
    stage.wait(lambda: workers <= stage.living(name).keys(), f"the workers of {name}")
    while waiting := [pod for pod, phase in stage.living(name).items() if phase == "Pending"]:
        for pod in waiting:
            patch = {"metadata": {"annotations": {WAITING: None}}}
            stage.ask("PATCH", f"{CORE}/pods/{pod}", patch, MERGE)
        stage.launcher(name)  # with WaitForWorkersReady it is created now
        stage.settle()
    stage.wait_active(name)


def succeeds(stage: MpiStage, name: str) -> None:
    stage.end_pod(stage.launcher(name))
    stage.wait_condition("Succeeded", name)
    stage.wait(lambda: stage.status(name).get("completionTime"), f"completionTime of {name}")
    failed = {"failed": 1} if name.startswith("retried") else {}
    assert stage.counts(name)["Launcher"] == {"succeeded": 1, **failed}


def fails(stage: MpiStage, name: str) -> None:
    stage.end_pod(stage.launcher(name), 3)
    stage.wait_condition("Failed", name)
    stage.wait(lambda: stage.status(name).get("completionTime"), f"completionTime of {name}")


def retries(stage: MpiStage, name: str) -> None:
    """The launcher fails, and the Job controller makes another one."""
    first = stage.launcher(name)
    stage.end_pod(first, 3)
    stage.wait(lambda: stage.counts(name)["Launcher"].get("failed") == 1, f"the failure of {first}")
    stage.wait(lambda: stage.launcher(name) != first, f"a successor of {first}")
    stage.wait_active(name)


def loses_worker(stage: MpiStage, name: str) -> None:
    """A failed worker stays as it is, and the job goes on."""
    stage.end_pod(f"{name}-worker-1", 3)
    stage.wait(lambda: stage.counts(name)["Worker"] == {"active": 1, "failed": 1}, "the failed worker to be counted")


def is_evicted(stage: MpiStage, name: str) -> None:
    stage.evict_pod(f"{name}-worker-1")
    stage.wait_condition("Failed", name)


def ends_evicted(stage: MpiStage, name: str) -> None:
    """mpi-operator lets the launcher of an evicted job go on; ours ends the job."""
    stage.wait(lambda: stage.status(name).get("completionTime"), f"completionTime of {name}")
    stage.wait(lambda: not any("-launcher" in pod for pod in stage.living(name)), f"the end of the launcher of {name}")


def replaces_worker(stage: MpiStage, name: str) -> None:
    """A worker that was deleted by hand returns, and has the same key."""
    worker = f"{name}-worker-0"
    uid = stage.pods()[worker]["metadata"]["uid"]
    stage.ask("DELETE", f"{CORE}/pods/{worker}")
    stage.wait_successor(worker, uid)
    stage.wait_active(name)


def scales(count: int) -> Step:
    def step(stage: MpiStage, name: str) -> None:
        stage.patch_job({"mpiReplicaSpecs": {"Worker": {"replicas": count}}}, name)
        stage.wait_active(name)
        hosts = [f"{name}-worker-{index}" for index in range(count)]
        assert [line.split()[0].split(".")[0] for line in stage.file(name, "hostfile").splitlines()] == hosts
        stage.wait(lambda: stage.file(name, "discover_hosts.sh").count("-worker-") == count, "the discovery of hosts")

    return step


def is_suspended(stage: MpiStage, name: str) -> None:
    stage.patch_job({"runPolicy": {"suspend": True}}, name)
    stays_suspended(stage, name)
    stage.wait(lambda: not stage.living(name), f"no pods of {name}")


def stays_suspended(stage: MpiStage, name: str) -> None:
    stage.wait_condition("Suspended", name)
    stage.wait(lambda: not stage.living(name), f"no pods of {name}")


def resumes(stage: MpiStage, name: str) -> None:
    stage.patch_job({"runPolicy": {"suspend": False}}, name)
    stage.wait(lambda: stage.condition("Suspended", name).get("status") == "False", f"{name} to be resumed")
    stage.wait_active(name)


def loses_launcher(stage: MpiStage, name: str) -> None:
    """The time to live of the launcher's Job ends."""
    path = f"/apis/batch/v1/namespaces/{{namespace}}/jobs/{name}-launcher"
    stage.wait(lambda: stage.try_to("GET", path).status == 404, f"the deletion of {name}-launcher")


def is_swept(stage: MpiStage, name: str) -> None:
    """The clean-up deletes the workers."""
    stage.wait(lambda: not any("-worker-" in pod for pod in stage.living(name)), f"the clean-up of {name}")


def is_deleted(stage: MpiStage, name: str) -> None:
    stage.ask("DELETE", f"{stage.jobs}/{name}")
    stage.wait(lambda: not stage.pods_of(name), f"the collection of the pods of {name}")


def is_ignored(stage: MpiStage, name: str) -> None:
    stage.settle()
    assert "status" not in stage.job(name)
    assert not stage.pods_of(name)


@dataclass(frozen=True)
class MpiScene:
    """A job and its past."""

    name: str
    workers: int = 2
    restart: str = "Never"
    """Of the launcher."""
    run_policy: Mapping[str, object] = field(default_factory=dict)
    spec: Json = field(default_factory=dict)
    waits: bool = False
    """The pods stay pending."""
    past: tuple[Step, ...] = (runs,)
    """Before the operator is replaced."""
    future: tuple[Step, ...] = ()
    """Afterwards. The scene is played twice: one job has its future under our operator, and one under the old one."""
    over: bool = False
    """Neither the job nor a child of it is written by the new operator: it has finished, or is another controller's."""
    transports: tuple[str, ...] = (SSH, EXEC)


ONCE: Json = {"backoffLimit": 0}
SCENES = [
    MpiScene("runs", future=(succeeds,)),
    MpiScene("waits", waits=True, past=(waits,), future=(starts, succeeds)),
    MpiScene("works", spec={"slotsPerWorker": 2}, future=(is_suspended,)),
    MpiScene("grown", past=(runs, scales(3)), future=(scales(1),)),
    MpiScene("suspended", run_policy={"suspend": True}, past=(stays_suspended,), future=(resumes, succeeds)),
    MpiScene("stopped", past=(runs, is_suspended), future=(resumes,)),
    MpiScene("resumed", past=(runs, is_suspended, resumes), future=(succeeds,)),
    MpiScene("keeps", past=(runs, succeeds), over=True),
    MpiScene("clears", run_policy={"cleanPodPolicy": "All"}, past=(runs, succeeds, is_swept), over=True),
    MpiScene("sweeps", run_policy={"cleanPodPolicy": "Running"}, past=(runs, succeeds, is_swept), over=True),
    MpiScene("failed", run_policy=ONCE, past=(runs, fails), over=True),
    MpiScene("dated", run_policy={"ttlSecondsAfterFinished": 3600}, past=(runs, succeeds), over=True),
    MpiScene("fails", run_policy=ONCE, future=(fails,)),
    MpiScene("doomed", future=(is_deleted,)),
    MpiScene("foreign", run_policy={"managedBy": MANAGED_ELSEWHERE}, past=(is_ignored,), over=True),
    MpiScene("lonely", spec={"mainContainer": "mpi"}, future=(succeeds,), transports=(EXEC,)),
    MpiScene("mpich", spec={"mpiImplementation": "MPICH", "slotsPerWorker": 3}, transports=(SSH,)),
    MpiScene(
        "working",
        spec={"runLauncherAsWorker": True, "mpiImplementation": "Intel"},
        future=(succeeds,),
        transports=(SSH,),
    ),
    MpiScene("patient", spec={"launcherCreationPolicy": "WaitForWorkersReady"}, future=(succeeds,), transports=(SSH,)),
    MpiScene(
        "unready",
        spec={"launcherCreationPolicy": "WaitForWorkersReady"},
        waits=True,
        past=(waits,),
        future=(starts, succeeds),
        transports=(SSH,),
    ),
    MpiScene("retried", past=(runs, retries), future=(succeeds,), transports=(SSH,)),
    MpiScene("timed", run_policy={"ttlSecondsAfterFinished": 3600}, future=(succeeds,)),
    MpiScene("limps", past=(runs, loses_worker), transports=(SSH,)),
    MpiScene("replaced", past=(runs, replaces_worker), future=(replaces_worker,), transports=(SSH,)),
    MpiScene(
        "expired",
        run_policy={"ttlSecondsAfterFinished": 1},
        past=(runs, succeeds, loses_launcher),
        over=True,
        transports=(SSH,),
    ),
]
