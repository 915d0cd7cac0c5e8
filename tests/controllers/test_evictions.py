"""Evictions that the operator answers: of jobs of every kind, and the requests that it sends for them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.controllers.shell import JOBS, KEY, Shell, api_error, pytorch_job
from tests.controllers.worlds import WORLDS, annotate, decide, kind_in, settle, start
from tests.engine.test_evictions import OURS, RESPOND, eviction
from tests.engine.world import World
from tests.kinds.mpi_world import MpiWorld
from tests.runtime.virtual_time import virtual_time
from trainop.controllers.evictions import RETRY, SYNC_CHECK, SYNC_LIMIT, decode_eviction
from trainop.engine.actions import Answer
from trainop.engine.seen import EVICTIONS, Eviction, SeenEvictions
from trainop.runtime.cache.informer import Informer
from trainop.runtime.objects.metadata import PODS, Json, Key

RESTARTED = [kind for kind in WORLDS if kind != "DIJob"]
HISTORY = "trainop.kubeflow.org/restarts"


# Every kind -----------------------------------------------------------------------------------------------------------


def make_world(kind: str, *, answers: bool = True, **annotations: str) -> World:
    make, job = WORLDS[kind].args  # type: ignore[attr-defined]
    world: World = make(annotate(job(), **annotations))
    world.options = replace(world.options, answers_evictions=answers)
    settle(world)
    return world


def specs(world: World) -> list[Json]:
    found = [pod["spec"] for pod in world.pods.values()]
    if isinstance(world, MpiWorld) and world.kind.launcher is not None:
        found.append(world.launcher["spec"]["template"]["spec"])
    return found


@pytest.mark.parametrize("kind", WORLDS)
def test_all_pods_have_the_operator_as_a_responder(kind: str):
    world = make_world(
        kind, on_disruption="checkpoint-and-respond", answers=kind_in(WORLDS[kind]()).restart is not None
    )
    expected = None if kind == "DIJob" else [OURS]  # the operator does not restart DIJobs, and says so
    assert [spec.get("evictionResponders") for spec in specs(world)] == [expected] * len(specs(world))
    assert specs(world)


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("annotations", [{}, {"on_disruption": "checkpoint-all", "checkpoint_grace": "5m"}])
def test_without_the_annotation_pods_have_none(kind: str, annotations: dict[str, str]):
    assert not any("evictionResponders" in json.dumps(spec) for spec in specs(WORLDS[kind](**annotations)))


@pytest.mark.parametrize("kind", RESTARTED)
def test_an_eviction_restarts_the_whole_job(kind: str):
    world = make_world(kind, on_disruption="checkpoint-and-respond")
    start(world)
    target = max(world.pods)
    found = msgspec.convert(eviction(world.pods[target], since=world.now), Eviction)
    made = decide(world, evictions=SeenEvictions(found=(found,)))
    assert json.loads(made.annotations[HISTORY] or "")["disruptions"] == 1
    (answer,) = (each for each in made.actions if isinstance(each, Answer))
    assert answer.name == "e"
    settle(world)
    left = [name for name in world.living() if "launcher" not in name]  # the Job controller ends a suspended launcher
    assert left == ([] if kind != "MPIJob over ssh" else left)
    assert world.is_true("Restarting")


# Requests -------------------------------------------------------------------------------------------------------------


def shell_with_job(annotations: dict[str, str] | None = None) -> Shell:
    shell = Shell()
    job = pytorch_job()
    for each in job["spec"]["pytorchReplicaSpecs"].values():
        each["restartPolicy"] = "OnFailure"
    job["metadata"]["annotations"] = dict(RESPOND if annotations is None else annotations)
    shell.client.put(JOBS, job)
    return shell


def cache_of(shell: Shell) -> Any:
    return shell.reconciler._observer._evictions


def informer_of(shell: Shell) -> Informer[Eviction]:
    found: Informer[Eviction] = cache_of(shell).informer
    return found


def sync(shell: Shell) -> None:
    informer = informer_of(shell)
    informer.listed((), informer._scopes[0])


def show(shell: Shell, *evictions: Json) -> None:
    """The API server has these, and the cache shows them."""
    for each in evictions:
        stored = shell.client.put(EVICTIONS, each)
        informer_of(shell).put(decode_eviction(msgspec.json.encode(stored)), listing=False, initial=False)


async def started() -> Shell:
    shell = shell_with_job()
    shell.show()
    await shell.look()
    sync(shell)
    await shell.settle()
    for name in shell.pods():
        shell.set_phase(name, "Running")
    await shell.settle()
    return shell


def pod(shell: Shell, name: str = "j-worker-1") -> Json:
    return shell.client.objects[PODS, Key("ns", name)]


def said(shell: Shell) -> Json:
    found: Json = shell.client.objects[EVICTIONS, Key("ns", "e")]["status"]["responders"][1]
    return found


def since_now(shell: Shell, target: Json, **more: Any) -> Json:
    return eviction(target, since=shell.clock.now(), **more)


@virtual_time
async def test_nothing_is_opened_where_no_job_asks():
    shell = shell_with_job({"trainop.kubeflow.org/on-disruption": "checkpoint-all"})
    await shell.settle()
    assert cache_of(shell).informer is None
    assert all("evictionResponders" not in pod(shell, name)["spec"] for name in shell.pods())


@virtual_time
async def test_the_first_job_that_asks_waits_until_it_is_known_what_is_served():
    shell = shell_with_job()
    shell.show()
    assert (await shell.look()).requeue_after == SYNC_CHECK
    assert not shell.pods()
    sync(shell)
    await shell.settle()
    assert [pod(shell, name)["spec"]["evictionResponders"] for name in shell.pods()] == [[OURS]] * 3


@virtual_time
async def test_it_does_not_wait_for_ever():
    shell = shell_with_job()
    shell.show()
    await shell.look()
    await shell.clock.sleep(SYNC_LIMIT)
    await shell.settle()
    assert len(shell.pods()) == 3
    (text,) = shell.events.of("EvictionsNotAnswered")
    assert text.endswith("evictions.lifecycle.k8s.io cannot be read yet")


@pytest.mark.parametrize(
    ("installation", "component"), [("", "eviction-responder"), ("namespaced", "eviction-responder-namespaced")]
)
@virtual_time
async def test_where_the_operator_has_no_permission_the_warning_names_the_component(installation: str, component: str):
    shell = shell_with_job()
    observer = shell.reconciler._observer
    observer._options = replace(observer._options, installation=installation)
    shell.show()
    await shell.look()
    informer_of(shell).denied(informer_of(shell)._scopes[0])
    await shell.settle()
    (text,) = shell.events.of("EvictionsNotAnswered")
    assert text.endswith(f"evictions.lifecycle.k8s.io, which its component {component} grants")
    assert all("evictionResponders" not in pod(shell, name)["spec"] for name in shell.pods())


@virtual_time
async def test_an_eviction_triggers_a_reconcile_and_is_answered():
    shell = await started()
    while await shell.woken():
        pass
    show(shell, since_now(shell, pod(shell)))
    assert await shell.woken()
    await shell.look()
    assert "All replicas of PyTorchJob j" in said(shell)["message"]
    assert not shell.pods()
    assert '"disruptions":1' in shell.job()["metadata"]["annotations"][HISTORY]


@pytest.mark.parametrize("target", [{"name": "j-worker-1", "uid": "other"}, {"name": "x", "uid": "x"}, None])
@virtual_time
async def test_an_eviction_of_another_pod_triggers_nothing(target: Json | None):
    shell = await started()
    while await shell.woken():
        pass
    found = since_now(shell, pod(shell))
    found["spec"]["target"] = {"pod": target} if target else {}
    show(shell, found)
    assert not await shell.woken()
    await shell.look()
    assert len(shell.pods()) == 3


@virtual_time
async def test_the_eviction_of_a_pod_that_is_gone_is_complete():
    shell = await started()
    show(shell, since_now(shell, {"metadata": {"name": "j-worker-1", "uid": "earlier"}}))
    await shell.look()
    assert said(shell)["message"] == "The pod has ended"
    assert said(shell)["completionTime"]
    assert len(shell.pods()) == 3


@virtual_time
async def test_it_is_not_if_only_the_cache_lacks_the_pod():
    shell = await started()
    found = since_now(shell, pod(shell))
    shell.view.pods.remove(shell.view.pods.store.get(Key("ns", "j-worker-1")))  # type: ignore[arg-type]
    show(shell, found)
    await shell.look()
    assert "message" not in said(shell)


@virtual_time
async def test_the_eviction_of_an_unknown_pod_is_left_alone():
    shell = await started()
    show(shell, since_now(shell, {"metadata": {"name": "other-worker-1", "uid": "earlier"}}))
    await shell.look()
    assert "message" not in said(shell)


@pytest.mark.parametrize(
    ("error", "requeued"),
    [
        (api_error(409, "Conflict"), False),
        (api_error(404, "NotFound"), False),
        (api_error(403, "Forbidden"), True),
        (api_error(422, "Invalid"), True),
        (ConnectionError(), True),
    ],
)
@virtual_time
async def test_an_answer_that_fails_keeps_the_job_from_nothing(error: Exception, requeued: bool):
    shell = await started()
    shell.client.fail("patch status", EVICTIONS, error)
    show(shell, since_now(shell, pod(shell)))
    result = await shell.look()
    assert not shell.pods()
    assert '"disruptions":1' in shell.job()["metadata"]["annotations"][HISTORY]
    assert ("Restarting", "True") in shell.conditions()
    assert result.requeue_after is not None
    assert (result.requeue_after <= RETRY) >= requeued
    assert not shell.events.of("FailedUpdateEviction")


@virtual_time
async def test_jobs_that_never_asked_are_not_affected_by_those_that_did():
    shell = await started()
    job = shell.job()
    del job["metadata"]["annotations"]["trainop.kubeflow.org/on-disruption"]
    shell.client.put(JOBS, job)
    before = shell.client.version
    await shell.settle()
    assert shell.client.version == before
    show(shell, since_now(shell, pod(shell)))  # its pods still have the responder
    await shell.settle()
    assert said(shell)["completionTime"]
    assert len(shell.pods()) == 3
    assert not shell.events.of("EvictionsNotAnswered")


@virtual_time
async def test_a_deleted_job_reads_nothing():
    shell = await started()
    del shell.client.objects[JOBS, KEY]
    shell.show()
    show(shell, since_now(shell, pod(shell)))
    await shell.look()
    assert "message" not in said(shell)
