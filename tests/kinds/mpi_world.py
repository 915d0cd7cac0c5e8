"""A toy cluster for one MPIJob. The tests play the Job controller and the kubelet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.controllers.shell import merge
from tests.engine.builders import UID, group_updated, pod_created
from tests.engine.world import World
from trainop.engine.actions import Action, Ensure, How, Patch, Plan
from trainop.engine.seen import Options, Snapshot
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.mpi.kinds import mpi_kinds
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V1, MPI_V2, TRANSPORT
from trainop.runtime.objects.metadata import CONFIG_MAPS, SECRETS, SERVICES, Json

MAIN = "c"
"""The name of the first container in the templates."""

V1 = MPI_V1.api_version


def replicas(count: int | None, policy: str | None = None, template: Json | None = None, **container: Any) -> Json:
    spec = {"containers": [{"name": MAIN, "image": "i", **container}], **(template or {})}
    given = {"replicas": count, "restartPolicy": policy}
    return {name: value for name, value in given.items() if value is not None} | {"template": {"spec": spec}}


def mpi_job(
    workers: int = 2,
    *,
    name: str = "foo",
    namespace: str = "bar",
    transport: str | None = "ssh",
    launcher: Json | None = None,
    worker: Json | None = None,
    run: Json | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Json:
    """An MPIJob as stored, whose transport is recorded."""
    specs = {"Launcher": launcher or replicas(1), **({"Worker": worker or replicas(workers)} if workers else {})}
    recorded = {TRANSPORT: transport} if transport else {}
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": UID,
        "generation": 1,
        "resourceVersion": "1",
        "annotations": {**recorded, **(annotations or {})},
    }
    policy = {"runPolicy": run} if run is not None else {}
    version = V1 if transport == "exec" else MPI_V2.api_version
    return {
        "apiVersion": version,
        "kind": "MPIJob",
        "metadata": metadata,
        "spec": {"mpiReplicaSpecs": specs, **policy, **spec},
    }


class MpiWorld(World):
    """One MPIJob, its children, and what the plans of its transport's controller do."""

    def __init__(self, job: Json, *, options: Options | None = None, ssh: bool = True) -> None:
        exec_, ssh_ = mpi_kinds(options or Options())
        self.kind = ssh_ if ssh else exec_
        super().__init__(job, framework=replace(MPI_EXEC, resource=self.kind.resource, container=MAIN), options=options)
        self.companions |= {each.resource: {} for each in self.kind.companion_kinds}
        self.secret: Json = {}
        self.made: list[str] = []
        """Kinds and names of created children, in order."""
        self.patches: list[Json] = []
        """Bodies of the patches of the launcher's Job, in order."""

    @property
    def plan(self) -> Callable[[Snapshot], Plan]:
        return self.kind.plan

    def step(self) -> Plan:
        made = self.plan(self.snapshot())
        self.carry_out(made)
        return made

    def _act(self, action: Action) -> None:
        match action:
            case Ensure(how=How.FILL):
                self._fill(action)
            case Ensure(how=How.APPLY):
                store = self.services if action.resource == SERVICES else self.companions[action.resource]
                if action.uid:
                    del store[action.name]
                else:
                    self.made.append(f"{action.resource.kind} {action.name}")
                self._create(store, action.manifest, {})
            case Patch(resource, name, uid, body, subresource) if not group_updated(action):
                found = self.companions[resource][name]
                assert found["metadata"]["uid"] == uid
                assert (subresource == "status") == ("status" in body)
                self.patches.append(body)
                self.companions[resource][name] = merge(found, body)
            case _:
                if pod_created(action):
                    self.made.append(f"Pod {action.name}")
                super()._act(action)

    def _fill(self, action: Ensure) -> None:
        store, content = self.companions.get(action.resource, {}), action.content
        if action.resource == SECRETS:
            assert content is not None
            assert content.is_valid is not None
            if not (self.secret and content.is_trusted and content.is_valid(self.secret)):
                self.made.append(f"Secret {action.name}")
                self.secret = {**action.manifest, **content.fill()}
        elif action.name not in store:
            self.made.append(f"{action.resource.kind} {action.name}")
            self._create(store, action.manifest, {})

    # The objects ------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> Json:
        """The data of the ConfigMap."""
        data: Json = self.config_map["data"]
        return data

    @property
    def config_map(self) -> Json:
        found: Json = self.companions[CONFIG_MAPS][f"{self.raw['metadata']['name']}-config"]
        return found

    jobs = LAUNCHER_JOBS

    @property
    def launcher(self) -> Json:
        """The launcher's Job."""
        found: Json = self.companions[LAUNCHER_JOBS][f"{self.raw['metadata']['name']}-launcher"]
        return found

    def has_launcher(self) -> bool:
        return bool(self.companions[LAUNCHER_JOBS])

    def condition(self, type_: str) -> Json:
        found: Json = next(each for each in self.status["conditions"] if each["type"] == type_)
        return found

    # What happens -----------------------------------------------------------------------------------------------------

    def launch(self, name: str = "foo-launcher-x", phase: str = "Running", **status: Any) -> None:
        """The Job controller has created a pod of the launcher."""
        job = self.launcher
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "foo-launcher", "controller": True}
        template = job["spec"]["template"]
        metadata = {
            "name": name,
            "namespace": "bar",
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner | {"uid": job["metadata"]["uid"]}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self._create(self.pods, pod, {"status": {"phase": phase, **status}})

    def run_workers(self, *, ready: bool = True) -> None:
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        for name in [name for name in self.pods if "-worker-" in name]:
            self.set_pod(name, "Running", conditions=[condition])

    def end_launcher(self, type_: str = "Complete", **condition: Any) -> None:
        """The Job has ended. Further fields of its status are given as `status`."""
        status = condition.pop("status", {})
        entry = {"type": type_, "status": "True", **condition}
        self.launcher["status"] = {**self.launcher.get("status", {}), "conditions": [entry], **status}


def world_of(*args: Any, options: Options | None = None, **fields: Any) -> MpiWorld:
    """A settled job with pending workers."""
    world = MpiWorld(mpi_job(*args, **fields), options=options)
    world.settle()
    return world


def running(*args: Any, **fields: Any) -> MpiWorld:
    """A job whose launcher and workers run."""
    world = world_of(*args, **fields)
    world.launch()
    world.run_workers()
    world.settle()
    return world
