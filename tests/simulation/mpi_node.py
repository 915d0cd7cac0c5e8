"""Nodes that play launchers and workers of MPIJobs.

Pods start when what they mount exists. Workers become ready some time after they run. A launcher fails if a host of its
hostfile does not run, as `mpirun` does; otherwise it ends as the script says.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.facts import phase, terminating
from tests.simulation.node import PODS, Nodes
from tests.simulation.oracle.rights import BINDINGS, ROLES
from tests.simulation.script import FAIL, NAMESPACE, SUCCEED
from trainop.local.api.storage.versioned_store import Key, Stored
from trainop.runtime.clock import timestamp
from trainop.runtime.objects.metadata import CONFIG_MAPS, SECRETS, Json, Resource

if TYPE_CHECKING:
    from tests.simulation.world import World

LAUNCHER = ("launcher", 0)
"""The slot of the launcher in a plan."""


def role_of(pod: Json) -> str:
    """`launcher` or `worker`; each transport has a label of its own."""
    labels = pod["metadata"].get("labels") or {}
    role = labels.get("training.kubeflow.org/replica-type") or labels.get("training.kubeflow.org/job-role") or ""
    return str(role)


class MpiNodes(Nodes):
    def __init__(self, world: World, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._waiting: dict[str, Key] = {}
        """By UID: pods that cannot start yet."""

    def look(self) -> None:
        for uid, key in list(self._waiting.items()):
            stored = self._world.store.get(PODS, key)
            if stored is None or stored.uid != uid:
                del self._waiting[uid]
            elif self._may_start(stored.value):
                del self._waiting[uid]
                self._later(self._rng.uniform(0.02, 0.5), self._start, key, uid)

    @property
    def stuck(self) -> list[str]:
        """The names of the pods that cannot start."""
        return sorted(name for _, name in self._waiting.values())

    def _start(self, stored: Stored) -> None:
        value = stored.value
        if terminating(value) or phase(value) != "Pending" or self._has_no_node(stored):
            return
        if not self._may_start(value):
            self._waiting[stored.uid] = stored.key
            return
        self.put(stored, {"phase": "Running", "containerStatuses": [self._container(value, running=True)]}, bind=True)
        self._later(self._rng.uniform(0.05, 3.0), self._become_ready, stored.key, stored.uid)
        if role_of(value) == "launcher":
            self._schedule_next(stored.key, stored.uid)

    def _may_start(self, pod: Json) -> bool:
        """Everything that it mounts exists; the init container of a launcher with transport exec waits for workers."""
        spec = pod["spec"]
        for volume in spec.get("volumes") or ():
            if "secret" in volume and not self._has(SECRETS, volume["secret"]["secretName"]):
                return False
            if "configMap" in volume and not self._has(CONFIG_MAPS, volume["configMap"]["name"]):
                return False
        if any(each["name"] == "wait-for-workers" for each in spec.get("initContainers") or ()):
            job = self._world.job_of(pod)
            return job is None or (self._hosts_run(job) and self._may_execute(job))
        return True

    def _may_execute(self, job: Json) -> bool:
        """The launcher has rights in all workers of the hostfile, without which its init container goes on waiting."""
        name = f"{job['metadata']['name']}-launcher"
        role, binding = (self._world.store.get(table, (NAMESPACE, name)) for table in (ROLES, BINDINGS))
        if not self._workers_of(job):
            return True
        if role is None or binding is None:
            return False
        rules = role.value.get("rules") or ()
        named = [set(rule.get("resourceNames") or ()) for rule in rules if "create" in rule["verbs"]]
        return bool(named) and named[0] >= set(self._workers_of(job))

    def _has(self, resource: Resource, name: str) -> bool:
        return self._world.store.get(str(resource), (NAMESPACE, name)) is not None

    def _hosts_run(self, job: Json) -> bool:
        """All workers in the hostfile run."""
        for host in self._workers_of(job):
            pod = self._world.store.get(PODS, (NAMESPACE, host))
            if pod is None or phase(pod.value) != "Running":
                return False
        return True

    def _workers_of(self, job: Json) -> list[str]:
        """The workers in the hostfile."""
        stored = self._world.store.get(str(CONFIG_MAPS), (NAMESPACE, f"{job['metadata']['name']}-config"))
        lines = str((stored.value.get("data") or {}).get("hostfile", "") if stored else "").splitlines()
        hosts = (line.split()[0].split(".")[0].split(":")[0] for line in lines)
        return [host for host in hosts if "-worker-" in host]

    def _become_ready(self, stored: Stored) -> None:
        if phase(stored.value) == "Running" and not terminating(stored.value) and not self._world.script.unready:
            self.put(stored, {"conditions": [{"type": "Ready", "status": "True"}]})

    def _progress(self, stored: Stored) -> None:
        """The next thing that happens to a launcher."""
        value = stored.value
        plan, job = self._plan_of(value), self._world.job_of(value)
        if terminating(value) or phase(value) != "Running" or role_of(value) != "launcher":
            return
        if plan is None or job is None:
            return
        uid = job["metadata"]["uid"]
        attempts = plan.attempts.get(LAUNCHER, ())
        spent = self._spent[uid, LAUNCHER]
        if not self._hosts_run(job):
            self._fail(stored, 1)
        elif spent < len(attempts):
            self._spent[uid, LAUNCHER] += 1
            self._fail(stored, attempts[spent])
        elif plan.goal == SUCCEED:
            self.end(stored, "Succeeded", code=0)
        elif plan.goal == FAIL:
            self._fail(stored, 1)

    def _fail(self, stored: Stored, code: int) -> None:
        """The kubelet restarts the container if the policy of the pod says so."""
        value = stored.value
        if value["spec"].get("restartPolicy") != "OnFailure":
            self.end(stored, "Failed", code=code)
            return
        restarts = self._restarts(value) + 1
        self.put(stored, {"containerStatuses": [self._container(value, restarts=restarts, running=True)]})
        self._schedule_next(stored.key, stored.uid)

    def _container(
        self, pod: Json, *, code: int | None = None, restarts: int | None = None, running: bool = False
    ) -> Json:
        """With the time of its end, from which the back-off of a Job counts."""
        made = super()._container(pod, code=code, restarts=restarts, running=running)
        if "terminated" in made["state"]:
            made["state"]["terminated"]["finishedAt"] = timestamp(self._world.clock.now())
        return made
