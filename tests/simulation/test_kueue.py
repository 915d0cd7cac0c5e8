"""The whole operator with `--kueue` in virtual time, beside a Kueue that admits and evicts at random, users who delete
and edit, and restarts. The oracle sees each write before it reaches the API server."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.controllers.kinds import make
from tests.controllers.test_embedded_queue import SETTINGS, kueue_crd
from tests.controllers.test_shell_operator import Stage, Watched, running, stage
from tests.kinds.dijob_world import dijob
from tests.runtime.virtual_time import virtual_time
from trainop.engine.actions import Ensure, Plan
from trainop.engine.kueue import FLAVORS, QUEUE, WORKLOAD_CLASSES, WORKLOADS
from trainop.engine.queueing import queue, standing
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Snapshot
from trainop.kinds.dijob.crd import dijob_crd
from trainop.kinds.dijob.names import DIJOBS, REPLICAS
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.client.transport import Request, Response
from trainop.runtime.errors import ConflictError, NotFoundError
from trainop.runtime.objects.metadata import CUSTOM_RESOURCE_DEFINITIONS, PODS, Json

NOW = "2026-01-01T00:00:00Z"
LAG = 2.0
"""Seconds for which the operator may not know yet what Kueue has decided."""
STEPS = 60
RESOURCES = {kind: framework.resource for kind, framework in FRAMEWORKS.items()} | {"DIJob": DIJOBS}


class Oracle(Watched):
    """The operator's transport. `faults`: what it must never do."""

    def __init__(self, here: Stage) -> None:
        super().__init__(here.server.transport())
        self.here = here
        self.faults: list[str] = []
        self.admitted: dict[str, float] = {}
        """UID of a job -> until when it may get pods."""
        self.foreign: dict[str, float] = {}
        """UID of a job -> since when it has a Workload of Kueue's own integration."""
        self.made = 0

    async def send(self, request: Request) -> Response:
        if request.method in {"POST", "PATCH"} and request.body:
            await self._judge(request, msgspec.json.decode(bytes(request.body)))
        return await super().send(request)

    async def _judge(self, request: Request, body: Any) -> None:
        path = request.path.partition("?")[0]
        now = self.here.clock.monotonic()
        if request.method == "POST" and path.endswith("/pods"):
            self.made += 1
            uid = owner_of(body)
            if self.admitted.get(uid, -LAG) + LAG < now and uid not in self.foreign:
                self.faults.append(f"{now}: pod {body['metadata']['name']} without admission")
        elif request.method == "POST" and path.endswith("/workloads"):
            await self._judge_workload(body, now)
        elif "/workloads/" in path and path.endswith("/status"):
            conditions = body["status"].get("conditions", ())
            if any((each["type"], each["status"]) == ("QuotaReserved", "False") for each in conditions):
                await self._judge_release(path.split("/")[-2], now)

    async def _judge_workload(self, body: Json, now: float) -> None:
        uid = owner_of(body)
        others = [each for each in await workloads(self.here) if owner_of(each) == uid]
        if any(each["metadata"]["name"] != body["metadata"]["name"] and is_ours(each) for each in others):
            self.faults.append(f"{now}: a second Workload of {uid}")
        if self.foreign.get(uid, now) + LAG < now:
            self.faults.append(f"{now}: a Workload beside that of another integration")

    async def _judge_release(self, name: str, now: float) -> None:
        found = [each for each in await workloads(self.here) if each["metadata"]["name"] == name]
        for workload in found:
            living = [pod for pod in await pods_of(self.here, owner_of(workload)) if not has_ended(pod)]
            if living:
                self.faults.append(f"{now}: quota of {name} returned with {len(living)} pods")


def owner_of(thing: Json) -> str:
    return next((str(each["uid"]) for each in thing["metadata"].get("ownerReferences", ())), "")


def is_ours(workload: Json) -> bool:
    return "trainop.kubeflow.org/fingerprint" in workload["metadata"].get("annotations", {})


def has_ended(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


async def workloads(here: Stage) -> list[Json]:
    return list((await here.client.list(WORKLOADS, "ns")).items)


async def pods_of(here: Stage, uid: str) -> list[Json]:
    return [pod for pod in (await here.client.list(PODS, "ns")).items if owner_of(pod) == uid]


def conditions_of(workload: Json) -> dict[str, str]:
    return {each["type"]: each["status"] for each in workload.get("status", {}).get("conditions", ())}


class Chaos:
    """Kueue, its users and the kubelets of one seed."""

    def __init__(self, here: Stage, oracle: Oracle, seed: int) -> None:
        self.here, self.oracle, self.rng = here, oracle, random.Random(f"{seed}/kueue")
        self.jobs: dict[str, tuple[str, Json]] = {}
        """Name -> kind, and the job as it was created."""

    async def install(self) -> None:
        client = self.here.client
        for resource in (WORKLOADS, FLAVORS, WORKLOAD_CLASSES):
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, kueue_crd(resource))
        flavor: Json = {"apiVersion": FLAVORS.api_version, "kind": FLAVORS.kind, "metadata": {"name": "spot"}}
        await client.create(FLAVORS, {**flavor, "spec": {"nodeLabels": {"pool": "spot"}}})
        for kind in self.rng.sample(sorted(RESOURCES), 3):
            name = f"j{len(self.jobs)}"
            definition = dijob_crd() if kind == "DIJob" else crd(FRAMEWORKS[kind])
            await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
            job = new_job(kind, name)
            self.jobs[name] = kind, await client.create(RESOURCES[kind], job, namespace="ns")

    async def step(self) -> None:
        rare = (self.evict, self.delete_workload, self.edit_workload, self.flip_suspend, self.integrate)
        act = self.rng.choice((*rare, *[self.admit] * 3, *[self.run_pods] * 2, *[self.reap] * 2))
        with suppress(ConflictError, NotFoundError):  # the operator was faster
            await act()
        await asyncio.sleep(self.rng.choice((0.01, 0.3, 3.0, 40.0)))

    async def _choose(self, *, reserves: bool) -> Json | None:
        found = [each for each in await workloads(self.here) if is_ours(each)]
        found = [each for each in found if conditions_of(each).get("Finished") != "True"]
        found = [each for each in found if (conditions_of(each).get("QuotaReserved") == "True") is reserves]
        return self.rng.choice(found) if found else None

    async def admit(self) -> None:
        if (workload := await self._choose(reserves=False)) is not None:
            await self.admit_one(workload)

    async def admit_one(self, workload: Json) -> None:
        assigned = [
            {"name": each["name"], "flavors": {"cpu": "spot"}, "count": each["count"]}
            for each in workload["spec"]["podSets"]
        ]
        self.oracle.admitted[owner_of(workload)] = float("inf")
        admission = {"clusterQueue": "cq", "podSetAssignments": assigned}
        await self._say(workload, {"admission": admission}, QuotaReserved="True", Admitted="True", Evicted="False")

    async def evict(self) -> None:
        if (workload := await self._choose(reserves=True)) is not None:
            self.oracle.admitted[owner_of(workload)] = self.here.clock.monotonic()
            await self._say(workload, {}, Evicted="True")

    async def _say(self, workload: Json, status: Json, **said: str) -> None:
        known = {each["type"]: each for each in workload.get("status", {}).get("conditions", ())}
        for type_, value in said.items():
            known[type_] = {"type": type_, "status": value, "reason": "Preempted", "lastTransitionTime": NOW}
        metadata = workload["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {**status, "conditions": list(known.values())},
        }
        await self.here.client.patch(WORKLOADS, metadata["name"], "ns", body, subresource="status")

    async def run_pods(self) -> None:
        for pod in (await self.here.client.list(PODS, "ns")).items:
            metadata = pod["metadata"]
            if not has_ended(pod) and "deletionTimestamp" not in metadata:
                await self.here.set_status(metadata["name"], {"phase": "Running"})
                kubelet = {"metadata": {"finalizers": ["test/kubelet"]}}  # a running pod takes a while to end
                await self.here.client.patch(PODS, metadata["name"], "ns", kubelet)

    async def reap(self) -> None:
        """Pods that are being deleted end."""
        for pod in (await self.here.client.list(PODS, "ns")).items:
            if "deletionTimestamp" in pod["metadata"]:
                await self.here.client.patch(PODS, pod["metadata"]["name"], "ns", {"metadata": {"finalizers": None}})

    async def delete_workload(self) -> None:
        if (workload := await self._choose(reserves=self.rng.random() < 0.5)) is not None:
            self.oracle.admitted[owner_of(workload)] = self.here.clock.monotonic()
            await self.here.client.delete(WORKLOADS, workload["metadata"]["name"], "ns")

    async def edit_workload(self) -> None:
        if (workload := await self._choose(reserves=False)) is not None:
            name = workload["metadata"]["name"]
            await self.here.client.patch(WORKLOADS, name, "ns", {"spec": {"queueName": "other"}})

    async def flip_suspend(self) -> None:
        name, (kind, _) = self.rng.choice(sorted(self.jobs.items(), key=lambda each: each[0]))
        if kind != "DIJob":
            body = {"spec": {"runPolicy": {"suspend": self.rng.random() < 0.5}}}
            await self.here.client.patch(RESOURCES[kind], name, "ns", body)

    async def integrate(self) -> None:
        """Kueue's own integration makes a Workload for a job that waits, too, or lets go of one."""
        foreign = [each for each in await workloads(self.here) if not is_ours(each)]
        for each in foreign:
            await self.here.client.delete(WORKLOADS, each["metadata"]["name"], "ns")
            self.oracle.foreign.pop(owner_of(each), None)
            self.oracle.admitted[owner_of(each)] = self.here.clock.monotonic()
        if foreign or self.rng.random() < 0.7:
            return
        _, job = self.rng.choice(sorted(self.jobs.values(), key=lambda each: each[1]["metadata"]["name"]))
        metadata = job["metadata"]
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        owners = [{**owner, "controller": True}]
        made = {"name": f"kueue-{metadata['name']}", "namespace": "ns", "ownerReferences": owners}
        body: Json = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind, "metadata": made}
        await self.here.client.create(WORKLOADS, {**body, "spec": {"queueName": "q", "podSets": []}}, namespace="ns")
        self.oracle.foreign[metadata["uid"]] = self.here.clock.monotonic()

    async def calm(self) -> None:
        """Everything is admitted, and every pod succeeds."""
        for _ in range(12):
            await self.reap()
            while (workload := await self._choose(reserves=False)) is not None:
                await self.admit_one(workload)
            for each in await workloads(self.here):
                if not is_ours(each):
                    await self.here.client.delete(WORKLOADS, each["metadata"]["name"], "ns")
                    self.oracle.foreign.pop(owner_of(each), None)
            await asyncio.sleep(70)
        for kind, job in self.jobs.values():
            for pod in await pods_of(self.here, job["metadata"]["uid"]):
                await self.here.set_status(pod["metadata"]["name"], succeeded(kind))
        await asyncio.sleep(70)


def new_job(kind: str, name: str) -> Json:
    metadata: Json = {"name": name, "namespace": "ns", "labels": {QUEUE: "q"}}
    if kind == "DIJob":
        return {**dijob(replicas=True), "metadata": {**metadata, "annotations": {REPLICAS: "collector=2"}}}
    fields: dict[str, Any] = {"jobMode": "MXTrain"} if kind == "MXJob" else {}
    return {**make(kind, policy="Never", **fields), "metadata": metadata}


def succeeded(kind: str) -> Json:
    container = FRAMEWORKS[kind].container if kind in FRAMEWORKS else "di-container"
    state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    return {"phase": "Succeeded", "containerStatuses": [{"name": container, "state": state}]}


async def play(seed: int) -> tuple[Oracle, dict[str, Json], list[Json]]:
    """Returns what the oracle saw, the jobs at the end, and their Workloads."""
    async with stage(SETTINGS, crds=False, run=False) as here:
        oracle = Oracle(here)
        here.transport = oracle
        chaos = Chaos(here, oracle, seed)
        await chaos.install()
        for part in range(3):  # each by another operator
            async with running(here.operator(SETTINGS)):
                await asyncio.sleep(5)
                for _ in range(STEPS // 3):
                    await chaos.step()
                if part == 2:
                    await chaos.calm()
        jobs = {name: await here.client.get(RESOURCES[kind], name, "ns") for name, (kind, _) in chaos.jobs.items()}
        return oracle, jobs, await workloads(here)


def ends(jobs: dict[str, Json]) -> Iterator[tuple[str, bool]]:
    for name, job in jobs.items():
        conditions = job.get("status", {}).get("conditions", ())
        yield name, any((each["type"], each["status"]) == ("Succeeded", "True") for each in conditions)


@pytest.mark.parametrize("seed", range(12))
@virtual_time
async def test_no_pod_without_admission_and_no_second_integration(seed: int) -> None:
    oracle, jobs, left = await play(seed)
    assert oracle.faults == []
    assert oracle.made >= len(jobs)
    assert dict(ends(jobs)) == dict.fromkeys(jobs, True), [job.get("status") for job in jobs.values()]
    assert all(conditions_of(each).get("Finished") == "True" for each in left)


def run_without_quota(self: Any) -> standing.Standing:
    return standing.Standing(standing.Mode.RUN, self.workload)


BUGS: dict[str, tuple[Any, str, Any]] = {
    "without admission": (standing._Current, "_wait", run_without_quota),
    "with [0-9]+ pods": (standing, "is_active", lambda _seen: False),
    "a Workload beside": (queue, "_stand_down", lambda made, seen, _foreign, _own: queue_beside(made, seen)),
}
"""What the oracle says about a planted bug -> the place of the bug, and what is there."""


def queue_beside(made: Plan, seen: Snapshot) -> Plan:
    """Makes a Workload although Kueue's own integration has one."""
    body = {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {
            "name": "beside",
            "namespace": "ns",
            "ownerReferences": [{"uid": seen.job.metadata.uid, "controller": True}],
        },
        "spec": {},
    }
    return replace(made, actions=(*made.actions, Ensure(WORKLOADS, "beside", lambda: msgspec.json.encode(body))))


@pytest.mark.parametrize("said", BUGS)
@virtual_time
async def test_the_oracle_finds_planted_bugs(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, bug = BUGS[said]
    monkeypatch.setattr(place, name, bug)
    for seed in range(12):
        oracle, _, _ = await play(seed)
        if any(re.search(said, fault) for fault in oracle.faults):
            return
    pytest.fail(f"no seed finds it: {said}")
