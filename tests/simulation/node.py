"""Simulated nodes: they start pods, end them as the script says, and remove deleted pods, unless a fault prevents it.

Writes go directly into the store, because kubelets and the scheduler are not under test.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.facts import Slot, finished, is_announced, owner_of, phase, slot_of, suspended, terminating
from tests.simulation.oracle.kinds import KINDS, Job
from tests.simulation.script import FAIL, SUCCEED, JobPlan
from trainop.engine.framework import JOB_NAME
from trainop.local.api.storage.versioned_store import Change, Key, Stored, Table
from trainop.runtime.clock import timestamp
from trainop.runtime.objects.metadata import Json

if TYPE_CHECKING:
    from tests.simulation.world import World

NODES = 3
PODS = "pods"


class Nodes:
    """Observes the pods in the store and writes their statuses."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._spent: Counter[tuple[str, Slot]] = Counter()
        """Attempts that a slot of a job (by UID) has behind it."""
        self._down: dict[int, float] = {}
        self._stuck: set[str] = set()
        self.busy = 0
        """Things that are about to happen."""

    # Changes in the store ---------------------------------------------------------------------------------------------

    def __call__(self, table: Table, change: Change) -> None:
        if table.name != PODS or change.new is None:
            return
        uid = change.new.uid
        if change.old is None or change.old.uid != uid:
            if self._world.scheduler is None:
                self.admit(change.new)
        elif owner_of(change.new.value) and not owner_of(change.old.value):
            self._later(self._rng.uniform(0.2, 6), self._progress, change.key, uid)
        elif terminating(change.new.value) and not terminating(change.old.value):
            grace = (0.05, 2.0) if self._rng.random() < 0.85 else (6.0, 9.0)
            self._later(self._rng.uniform(*grace), self._terminate, change.key, uid)

    def admit(self, stored: Stored) -> None:
        """The scheduler has found a node for the pod."""
        self._later(self._rng.uniform(0.02, 1.0), self._start, stored.key, stored.uid)

    def _later(self, delay: float, act: Any, key: Key, uid: str, *args: Any) -> None:
        self.busy += 1
        self._world.loop.outside(delay, self._act, act, key, uid, *args)

    def _act(self, act: Any, key: Key, uid: str, *args: Any) -> None:
        """Act now, or once the node is back if it is down."""
        self.busy -= 1
        stored = self._world.store.get(PODS, key)
        if stored is None or stored.uid != uid:
            return
        if self._is_down(uid):
            wait = self._down[self._node_of(uid)] - self._world.loop.time()
            self._later(wait + 0.01, act, key, uid, *args)
        else:
            act(stored, *args)

    def _node_of(self, uid: str) -> int:
        return int(uid[:4], 16) % NODES

    def _is_down(self, uid: str) -> bool:
        return self._down.get(self._node_of(uid), 0.0) > self._world.loop.time()

    # The life of a pod ------------------------------------------------------------------------------------------------

    def _start(self, stored: Stored) -> None:
        value = stored.value
        if terminating(value) or phase(value) != "Pending" or self._has_no_node(stored):
            return
        self.put(stored, {"phase": "Running", "containerStatuses": [self._container(value, running=True)]}, bind=True)
        self._schedule_next(stored.key, stored.uid)

    def _has_no_node(self, stored: Stored) -> bool:
        return stored.key[1].endswith(tuple(self._world.script.unstartable))

    def _schedule_next(self, key: Key, uid: str) -> None:
        hold = max(0.0, self._world.script.hold - self._world.loop.time())
        self._later(hold + self._rng.uniform(0.2, 6), self._progress, key, uid)

    def _progress(self, stored: Stored) -> None:
        """Carry out the next event in the pod's fate."""
        value = stored.value
        place, plan = slot_of(value), self._plan_of(value)
        if terminating(value) or phase(value) != "Running" or place is None or plan is None or is_announced(value):
            return
        job = self._world.job_of(value)
        if job is None or self._surplus(plan, job, place):
            return  # a pod that is being removed makes no progress
        if self._world.script.lingering and finished(job):
            return
        if self._world.script.orderly and self._world.users.wishes[plan.name]:
            self._schedule_next(stored.key, stored.uid)
            return
        owner = job["metadata"]["uid"]
        spent = self._spent[owner, place]
        attempts = plan.attempts.get(place, ())
        if spent < len(attempts):
            self._spent[owner, place] += 1
            self.end(stored, "Failed", code=attempts[spent])
        elif (restarts := self._restarts(value)) < plan.in_place.get(place, 0):
            self.put(stored, {"containerStatuses": [self._container(value, restarts=restarts + 1, running=True)]})
            self._schedule_next(stored.key, stored.uid)
        elif self._world.script.orderly:
            self._conclude(plan, job)
        else:
            self._end_alone(plan, place, stored)

    def _end_alone(self, plan: JobPlan, place: Slot, stored: Stored) -> None:
        if plan.goal == SUCCEED:  # now and then the exit code is not reported
            has_exit_code = self._rng.random() < 0.9 and place not in self._world.script.unreported
            self.end(stored, "Succeeded", code=0 if has_exit_code else None)
        elif plan.goal == FAIL and plan.culprit == place:
            self.end(stored, "Failed", code=1)

    def _conclude(self, plan: JobPlan, job: Json) -> None:
        """End all pods of a job together, once all exist and none has restarts left to go through."""
        uid = job["metadata"]["uid"]
        if plan.goal not in {SUCCEED, FAIL}:
            return
        pods = self._pods_of(uid)
        running = {slot_of(stored.value): stored for stored in pods if phase(stored.value) == "Running"}
        slots = self._slots(plan, job)
        ending = any(terminating(stored.value) or is_announced(stored.value) for stored in pods)
        if ending or set(running) != set(slots):
            return
        if self._world.users.wishes[plan.name] or any(self._is_down(stored.uid) for stored in pods):
            return
        for place in slots:
            done = self._spent[uid, place] >= len(plan.attempts.get(place, ()))
            if not done or self._restarts(running[place].value) < plan.in_place.get(place, 0):
                return
        if plan.goal == FAIL and plan.culprit not in running:
            return
        for slot, stored in running.items():
            if plan.goal == SUCCEED:
                self.end(stored, "Succeeded", code=0)
            elif slot == plan.culprit:
                self.end(stored, "Failed", code=1)

    def look(self) -> None:
        """Check whether jobs that wait for all their pods are complete now."""
        if not self._world.script.orderly or self._world.loop.time() < self._world.script.hold:
            return
        for plan in self._world.script.jobs:
            job = self._world.job_named(plan)
            if job is not None and not suspended(job):
                self._conclude(plan, job)

    def _surplus(self, plan: JobPlan, job: Json, place: Slot) -> bool:
        return self._world.script.orderly and (suspended(job) or place not in self._slots(plan, job))

    def _slots(self, plan: JobPlan, job: Json) -> list[Slot]:
        specs = job["spec"][plan.framework.replica_specs]
        return [(role.lower(), index) for role, spec in specs.items() for index in range(spec.get("replicas", 1))]

    def _pods_of(self, uid: str) -> list[Stored]:
        pods = self._world.store.table(PODS).objects.values()
        return [stored for stored in pods if (owner_of(stored.value) or {}).get("uid") == uid]

    def _plan_of(self, pod: Json) -> JobPlan | None:
        name = (pod["metadata"].get("labels") or {}).get(JOB_NAME)
        return next((plan for plan in self._world.script.jobs if plan.name == name), None)

    # The end of a pod -------------------------------------------------------------------------------------------------

    def end(self, stored: Stored, last: str, *, code: int | None, reason: str = "", preempted: bool = False) -> None:
        """The scheduler and the kubelet note the time of a disruption (kubernetes `pkg/api/v1/pod/util.go`
        `UpdatePodCondition`)."""
        status: Json = {"phase": last}
        if preempted or reason == "Evicted":
            why = "PreemptionByScheduler" if preempted else "TerminationByKubelet"
            at = timestamp(self._world.clock.now())
            condition = {"type": "DisruptionTarget", "status": "True", "reason": why, "lastTransitionTime": at}
            status["conditions"] = [condition]
        if reason:
            status |= {"reason": reason, "containerStatuses": []}
        elif code is not None:
            status["containerStatuses"] = [self._container(stored.value, code=code)]
        self._world.note("node", f"pod {stored.key[1]} {last} {code if code is not None else reason}")
        self.put(stored, status)

    def _terminate(self, stored: Stored) -> None:
        """The grace period is over: some pods report a status before they are removed, and stubborn ones stay."""
        world = self._world
        if world.script.immortal:
            return
        if (
            self._rng.random() < world.script.stubborn
            and world.loop.time() < world.script.calm_at
            and stored.uid not in self._stuck
        ):
            self._stuck.add(stored.uid)
            self._later(world.script.calm_at - world.loop.time() + 1, self._terminate, stored.key, stored.uid)
            return
        if phase(stored.value) == "Running" and self._rng.random() < 0.4:
            saves = Job(owner).saves if (owner := world.job_of(stored.value)) and owner["kind"] in KINDS else False
            if saves and self._rng.random() < 0.6:
                self.end(stored, "Succeeded", code=0)
            else:
                self.end(stored, "Failed", code=143)
            self._later(self._rng.uniform(0.01, 0.5), self._remove, stored.key, stored.uid)
        else:
            self._remove(stored)

    def _remove(self, stored: Stored) -> None:
        self._world.happened += 1
        self._world.store.remove(PODS, stored.key)

    # What fate does to pods -------------------------------------------------------------------------------------------

    def strike(self, act: str, rng: random.Random, seconds: float) -> bool:
        """Lose a running pod of an unfinished job, or a whole node; returns False if there is none."""
        if act == "node":
            self._fail_node(rng.randrange(NODES), seconds)
            return True
        living = self.at_work()
        if not living:
            return False
        stored = rng.choice(living)
        self._world.note("fate", f"{act} {stored.key[1]}")
        match act:
            case "evict":
                self.end(stored, "Failed", code=None, reason="Evicted")
            case "preempt":
                self.end(stored, "Failed", code=rng.choice((0, 1, 143)), preempted=True)
            case "vanish" | "vanish unseen":
                self._world.observer.loses(stored.uid)
                self._remove(stored)
            case "delete pod":
                self._world.observer.loses(stored.uid)
                self._world.mark_deleted(stored)
            case "drain":
                at = timestamp(self._world.clock.now())
                target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
                self.put(stored, {"conditions": [target | {"lastTransitionTime": at}]})
                self._later(rng.choice((0.0, 0.001, 0.5, 3.0)), self._drain, stored.key, stored.uid)
        return True

    def _drain(self, stored: Stored) -> None:
        if phase(stored.value) == "Running" and not terminating(stored.value):
            self._world.observer.loses(stored.uid)
            self._world.mark_deleted(stored)

    def at_work(self) -> list[Stored]:
        """Running pods of unfinished jobs."""
        pods = self._world.store.table(PODS).objects.values()
        return sorted((pod for pod in pods if self._is_at_work(pod.value)), key=lambda pod: pod.key)

    def _is_at_work(self, pod: Json) -> bool:
        job = self._world.job_of(pod)
        return phase(pod) == "Running" and not terminating(pod) and job is not None and not finished(job)

    def _fail_node(self, number: int, seconds: float) -> None:
        """The node is unreachable; its pods are marked for deletion halfway, and removed only when the node is back."""
        now = self._world.loop.time()
        self._world.note("fate", f"node {number} is silent for {seconds:.1f} s")
        self._down[number] = max(self._down.get(number, 0.0), now + seconds)
        self._world.loop.outside(seconds / 2, self._give_up, number)

    def _give_up(self, number: int) -> None:
        for stored in list(self._world.store.table(PODS).objects.values()):
            runs = phase(stored.value) == "Running" and not terminating(stored.value)
            if runs and self._node_of(stored.uid) == number:
                self._world.observer.loses(stored.uid)
                self._world.mark_deleted(stored)

    # Writing ----------------------------------------------------------------------------------------------------------

    def put(self, stored: Stored, changes: Json, *, bind: bool = False) -> None:
        value = msgspec.json.decode(stored.body, type=dict)
        value["status"] = value.get("status", {}) | changes
        if bind:
            value["spec"]["nodeName"] = f"node-{self._node_of(stored.uid)}"
        self._world.happened += 1
        self._world.store.put(PODS, stored.key, value)
        self.look()

    def _container(
        self, pod: Json, *, code: int | None = None, restarts: int | None = None, running: bool = False
    ) -> Json:
        now = timestamp(self._world.clock.now())
        state: Json = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now}}
        if running:
            state = {"running": {"startedAt": now}}
        name = pod["spec"]["containers"][0]["name"]
        count = self._restarts(pod) if restarts is None else restarts
        return {"name": name, "restartCount": count, "state": state, "image": "img", "imageID": "", "ready": running}

    def _restarts(self, pod: Json) -> int:
        return sum(each["restartCount"] for each in pod["status"].get("containerStatuses") or ())
