"""The operator's own integration with Kueue: jobs of every kind, and the requests that the operator sends for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, make
from tests.controllers.shell import JOBS, Shell, api_error, pytorch_job
from tests.engine.queue_world import QUEUE, QueueWorld, WithKueue
from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from tests.runtime.virtual_time import virtual_time
from trainop.engine.kueue import FLAVORS, WORKLOADS, SeenQueue
from trainop.kinds.mpi.transport import LAUNCHER_JOBS, MPI_V2, TRANSPORT
from trainop.programs.queues import QUEUED, with_queue
from trainop.programs.schemes import FRAMEWORKS
from trainop.programs.schemes import KINDS as SCHEMES
from trainop.runtime.cache.scope import Scope
from trainop.runtime.errors import DecodeError
from trainop.runtime.objects.metadata import PODS, Json, Key, Unstructured


class QueuedMpi(WithKueue, MpiWorld):
    def __init__(self, job: Json, *, ssh: bool = True) -> None:
        super().__init__(job, ssh=ssh)
        self.kind = with_queue(self.kind)

    @property
    def launcher_suspended(self) -> bool:
        return self.launcher["spec"].get("suspend") is True


def queued(job: Json) -> Json:
    job["metadata"]["labels"] = {**job["metadata"].get("labels", {}), QUEUE: "q"}
    return job


def world_of(kind: str, **run: Any) -> WithKueue:
    if kind.startswith("MPIJob"):
        transport = kind.removeprefix("MPIJob over ")
        job = mpi_job(transport=transport, run=run or None, worker=replicas(2, resources={"requests": {"cpu": "1"}}))
        return QueuedMpi(queued(job), ssh=transport == "ssh")
    job = queued(make(kind, policy="Never"))
    if run:
        job["spec"]["runPolicy"] = run
    return QueueWorld(job, framework=FRAMEWORKS[kind])


EVERY = [*KINDS, "MPIJob over ssh", "MPIJob over exec"]
every_kind = pytest.mark.parametrize("kind", EVERY)


def run(world: WithKueue) -> None:
    """All pods run."""
    world.settle()
    if isinstance(world, QueuedMpi) and world.kind.launcher is not None:
        world.launch()
        world.run_workers()
    world.run()
    world.settle()


def test_all_kinds_that_the_flag_names_are_here() -> None:
    """DIJobs, which cannot be suspended, are in tests/kinds/test_dijob_queueing.py."""
    assert {"DIJob", *(kind.split()[0] for kind in EVERY)} == set(QUEUED) == set(SCHEMES)


@every_kind
def test_job_waits_is_placed_preempted_and_placed_again(kind: str) -> None:
    world = world_of(kind, backoffLimit=3)
    world.settle()
    assert not world.pods
    assert world.suspended() is True
    assert world.is_true("Suspended")
    sets = world.workload["spec"]["podSets"]
    count = sum(each["count"] for each in sets)

    world.admit(flavor="spot")
    run(world)
    assert world.suspended() is False
    assert len(world.living()) == count
    assert world.said()["PodsReady"] == ("True", "Started")
    names = {each["name"] for each in sets}
    assert {placed_set(pod) for pod in templates(world)} == names
    assert all(pod["spec"]["nodeSelector"]["pool"] == "spot" for pod in templates(world))

    world.evict()
    world.settle()
    assert world.suspended() is True
    if isinstance(world, QueuedMpi) and world.kind.launcher is not None:
        assert world.launcher_suspended
        world.delete("foo-launcher-x")  # by the Job controller
    assert not world.living()
    assert world.said()["QuotaReserved"][0] == "True"
    world.reap()
    world.settle()
    assert world.said()["QuotaReserved"][0] == "False"

    world.admit()
    run(world)
    assert len(world.living()) == count
    assert not any("nodeSelector" in pod["spec"] for pod in templates(world)), "the other flavor has no labels"
    assert not world.is_true("Failed")


def templates(world: WithKueue) -> list[Json]:
    """What pods are made of: pods without an owner in this world are those of the launcher's Job."""
    found = [pod for pod in world.pods.values() if "spec" in pod and pod["metadata"]["name"] != "foo-launcher-x"]
    if isinstance(world, QueuedMpi) and world.kind.launcher is not None:
        found.append(world.launcher["spec"]["template"])
    return found


def placed_set(pod: Json) -> str:
    name: str = pod["metadata"]["labels"]["kueue.x-k8s.io/podset"]
    return name


def test_quota_is_kept_until_the_job_controller_has_suspended_the_launcher() -> None:
    """It may make a pod of a Job that was resumed a moment ago: no cache shows it when the job is evicted."""
    world = world_of("MPIJob over ssh")
    assert isinstance(world, QueuedMpi)
    world.settle()
    world.admit()
    world.settle()
    world.run_workers()
    world.settle()
    assert world.launcher["spec"].get("suspend") is not True
    world.launcher["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    world.evict()
    world.settle()
    world.reap()
    world.settle()
    assert world.launcher_suspended
    assert not world.pods
    assert world.said()["QuotaReserved"][0] == "True"
    world.launcher["status"]["conditions"] = [{"type": "Suspended", "status": "True"}]
    world.settle()
    assert world.said()["QuotaReserved"][0] == "False"


def test_launcher_of_an_evicted_job_is_not_resumed_while_kueue_is_absent() -> None:
    world = world_of("MPIJob over ssh")
    assert isinstance(world, QueuedMpi)
    world.settle()
    world.admit()
    run(world)
    world.launcher["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    world.evict()
    world.settle()
    assert world.launcher_suspended
    assert world.pods, "they are ending"
    world.queue = SeenQueue(unavailable="absent")
    world.settle()
    assert world.launcher_suspended
    assert world.launcher["status"]["startTime"]


@every_kind
def test_absent_api_starts_nothing_and_stops_nothing(kind: str) -> None:
    world = world_of(kind)
    known, world.queue = world.queue, SeenQueue(unavailable="absent")
    world.settle()
    assert not world.pods
    world.queue = known
    world.settle()
    world.admit()
    run(world)
    before = world.living()
    world.queue = SeenQueue(unavailable="absent")
    world.settle()
    assert world.living() == before
    assert world.shown[1] == "WorkloadUnavailable"


@pytest.mark.parametrize("transport", ["ssh", "exec"])
def test_mpi_job_without_a_transport_has_no_workload(transport: str) -> None:
    world = QueuedMpi(queued(mpi_job(transport=None)), ssh=transport == "ssh")
    world.step()
    assert not world.workloads
    assert not world.pods
    world = QueuedMpi(queued(mpi_job(transport=transport, run={"managedBy": "kueue.x-k8s.io/multikueue"})))
    world.step()
    assert not world.workloads


def test_mpi_job_over_ssh_waits_in_the_queue_from_its_first_pass_on() -> None:
    """As a user creates it: its transport is not recorded yet."""
    job = queued(mpi_job(transport=None))
    job["metadata"]["managedFields"] = [
        {"apiVersion": MPI_V2.api_version, "fieldsV1": {"f:spec": {"f:mpiReplicaSpecs": {}}}}
    ]
    world = QueuedMpi(job)
    made = world.step()
    assert made.annotations == {TRANSPORT: "ssh"}
    assert not world.pods
    assert world.launcher_suspended
    assert world.suspended() is True
    assert world.workload["spec"]["queueName"] == "q"


def test_pod_sets_of_an_mpi_job_over_ssh() -> None:
    world = world_of("MPIJob over ssh")
    world.settle()
    launcher, worker = world.workload["spec"]["podSets"]
    assert [(each["name"], each["count"]) for each in (launcher, worker)] == [("launcher", 1), ("worker", 2)]
    assert worker["template"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    world = QueuedMpi(queued(mpi_job(0)))
    world.settle()
    assert [each["name"] for each in world.workload["spec"]["podSets"]] == ["launcher"]


def test_invalid_mpi_job_asks_for_no_quota() -> None:
    world = QueuedMpi(queued(mpi_job(launcher=replicas(2))))
    world.step()
    assert not world.workloads
    assert LAUNCHER_JOBS not in {resource for resource, held in world.companions.items() if held}


# Requests -------------------------------------------------------------------------------------------------------------


def shell_with_job(**metadata: Any) -> Shell:
    shell = Shell(queued=True)
    job = pytorch_job()
    job["metadata"] |= {"labels": {QUEUE: "q"}, **metadata}
    shell.client.put(JOBS, job)
    shell.client.put(FLAVORS, {"metadata": {"name": "spot", "namespace": ""}, "spec": {"nodeLabels": {"pool": "spot"}}})
    return shell


def workload(shell: Shell) -> Json:
    (found,) = (each for (resource, _), each in shell.client.objects.items() if resource == WORKLOADS)
    return found


def say(shell: Shell, message: str = "", **conditions: tuple[str, str]) -> None:
    status = workload(shell).get("status", {})
    found = {each["type"]: each for each in status.get("conditions", ())}
    for type_, (value, reason) in conditions.items():
        moment = "2026-01-01T00:00:00Z"
        found[type_] = {
            "type": type_,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": moment,
        }
    shell.client.put(WORKLOADS, workload(shell) | {"status": {**status, "conditions": list(found.values())}})


def admit(shell: Shell) -> None:
    sets = workload(shell)["spec"]["podSets"]
    assigned = [{"name": each["name"], "flavors": {"cpu": "spot"}, "count": each["count"]} for each in sets]
    admission = {"clusterQueue": "cq", "podSetAssignments": assigned}
    shell.client.put(WORKLOADS, workload(shell) | {"status": {"admission": admission}})
    say(shell, QuotaReserved=("True", "QuotaReserved"), Admitted=("True", "Admitted"))


def writes(shell: Shell) -> list[str]:
    return [f"{call.verb} {call.resource.plural}" for call in shell.client.calls if call.verb not in ("get", "list")]


@virtual_time
async def test_without_the_flag_nothing_is_watched_and_nothing_is_written() -> None:
    shell, plain = Shell(), Shell()
    job = pytorch_job()
    plain.client.put(JOBS, job)
    job["metadata"]["labels"] = {QUEUE: "q"}
    shell.client.put(JOBS, job)
    assert shell.view.queue is None
    sources: Any = shell.controller._sources
    assert len(sources) == 4, "jobs, pods, services, autoscalers"
    assert len(shell_with_job().controller._sources) == 8
    for each in (shell, plain):
        await each.settle()
    assert writes(shell) == writes(plain)
    assert len(shell.pods()) == 3


@virtual_time
async def test_requests_of_a_job() -> None:
    shell = shell_with_job()
    await shell.settle()
    assert shell.pods() == []
    assert shell.job()["spec"]["runPolicy"]["suspend"] is True
    assert writes(shell).count("create workloads") == 1
    await drain(shell)
    admit(shell)
    shell.show()
    assert await drain(shell)
    await shell.settle()
    assert len(shell.pods()) == 3
    assert shell.job()["spec"]["runPolicy"]["suspend"] is False
    pod = shell.client.objects[PODS, Key("ns", "j-worker-0")]
    assert pod["spec"]["nodeSelector"] == {"pool": "spot"}
    for name in shell.pods():
        shell.set_phase(name, "Running")
    await shell.settle()
    assert condition(shell, "PodsReady")["status"] == "True"
    before = len(writes(shell))
    await drain(shell)
    shell.client.put(WORKLOADS, workload(shell) | {"other": "x"})
    shell.show()
    assert not await drain(shell), "nothing that a plan reads"
    await shell.settle()
    assert len(writes(shell)) == before

    say(shell, "make room", Evicted=("True", "Preempted"))
    await shell.settle()
    assert shell.pods() == []
    assert "admission" not in workload(shell)["status"]
    assert shell.job()["spec"]["runPolicy"]["suspend"] is True
    assert shell.events.of("Preempted") == ["make room"]


async def drain(shell: Shell) -> bool:
    """Whether events have added the job's key since the last call."""
    await asyncio.sleep(5)  # events of one moment are gathered
    woken = False
    while await shell.woken():
        woken = True
    return woken


def condition(shell: Shell, type_: str) -> Json:
    return next(each for each in workload(shell)["status"]["conditions"] if each["type"] == type_)


@virtual_time
async def test_write_that_meets_a_newer_workload_is_made_again() -> None:
    shell = shell_with_job()
    await shell.settle()
    admit(shell)
    shell.show()
    say(shell, "meanwhile", BlockedOnPreemptionGates=("False", "x"))
    await shell.look()
    assert not any(each["type"] == "PodsReady" for each in workload(shell)["status"]["conditions"])
    await shell.settle()
    assert condition(shell, "PodsReady")["status"] == "False"
    assert condition(shell, "BlockedOnPreemptionGates")["message"] == "meanwhile"


@virtual_time
async def test_refused_workload_is_named_once_and_tried_again() -> None:
    shell = shell_with_job()
    refusal = api_error(403, "Forbidden", "admission webhook denied the request: no")
    shell.client.fail("create", WORKLOADS, refusal, times=99)
    await shell.settle()
    tried = len(shell.client.names("create", WORKLOADS))
    result = await shell.settle()
    (shown,) = (each for each in shell.job()["status"]["conditions"] if each["type"] == "Admitted")
    assert (shown["status"], shown["reason"]) == ("False", "WorkloadRefused")
    assert "denied the request" in shown["message"]
    assert len(shell.client.names("create", WORKLOADS)) == tried
    assert result.requeue_after is not None
    assert result.requeue_after <= 60
    shell.client.faults.clear()
    await asyncio.sleep(400)
    await shell.settle()
    assert workload(shell)


@virtual_time
async def test_workload_that_cannot_be_read_stops_nothing() -> None:
    shell = shell_with_job()
    await shell.settle()
    admit(shell)
    await shell.settle()
    assert shell.view.queue is not None
    informer = shell.view.queue.workloads
    raw = workload(shell)
    error = DecodeError("status", "wrong", key=(key := Key("ns", raw["metadata"]["name"])))
    error.remains = Unstructured({"metadata": {**raw["metadata"], "resourceVersion": "9999"}})
    informer.store.reject(key, error)
    for _ in range(2):
        await shell.look()
        await asyncio.sleep(3)  # a status without actions may be delayed
    assert len(shell.pods()) == 3
    (shown,) = (each for each in shell.job()["status"]["conditions"] if each["type"] == "Admitted")
    assert (shown["reason"], shown["message"]) == (
        "WorkloadUnavailable",
        f"Workload {key.name} cannot be read: status: wrong",
    )


@pytest.mark.parametrize("absent", ["workloads", "flavors"])
@pytest.mark.parametrize("how", ["not served", "forbidden"])
@virtual_time
async def test_absence_is_named(absent: str, how: str) -> None:
    shell = Shell(queued=True)
    assert shell.view.queue is not None
    informer: Any = getattr(shell.view.queue, absent)
    if how == "not served":
        informer._served = False
        expected = "the API server does not serve kueue.x-k8s.io/v1beta2"
    else:
        informer.denied(Scope())
        expected = f"the operator has no permission to list and watch {informer.resource}"
    assert shell.view.queue.obstacle("ns").startswith(expected)


@virtual_time
async def test_client_that_sets_suspend_back_costs_few_writes() -> None:
    shell = shell_with_job()
    await shell.settle()
    before, started = len(shell.client.names("patch merge", JOBS)), shell.clock.monotonic()
    while shell.clock.monotonic() < started + 600:
        job = shell.job()
        policy = {**job["spec"]["runPolicy"], "suspend": False}
        shell.client.put(JOBS, job | {"spec": {**job["spec"], "runPolicy": policy}})
        shell.show()
        result = await shell.look()
        assert not shell.pods()
        await asyncio.sleep(min(result.requeue_after or 5, 5))
    assert 3 <= len(shell.client.names("patch merge", JOBS)) - before <= 12
    await asyncio.sleep(300)
    await shell.settle()
    assert shell.job()["spec"]["runPolicy"]["suspend"] is True
