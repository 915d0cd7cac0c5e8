"""Planted bugs of MPIJobs: their launchers, workers, keys and hosts, and the choice of the transport."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.simulation.families import MPI, ThemeOf
from tests.simulation.mpi_draw import THEMES
from tests.simulation.planting import bug, patch
from trainop.controllers.companion_writer import CompanionWriter
from trainop.engine.actions import CreateOnce
from trainop.engine.steps import companions
from trainop.kinds.mpi import exec as mpi_exec
from trainop.kinds.mpi import (
    exec_job,
    kinds,
    ssh,
    ssh_launcher,
    ssh_objects,
    ssh_status,
    ssh_workers,
    ssh_world,
    transport,
)
from trainop.kinds.mpi.hosts import owned_workers
from trainop.kinds.mpi.ssh_finish import has_ended
from trainop.kinds.mpi.ssh_world import World
from trainop.kinds.mpi.transport import Choice

of_mpi = functools.partial(bug, family=MPI)
THEME = {theme.name: ThemeOf(number, len(THEMES)) for number, theme in enumerate(THEMES)}


# Launchers ------------------------------------------------------------------------------------------------------------


@of_mpi("A launcher that waits for its workers starts when they run, ready or not.")
def running_workers_taken_for_ready():
    def may_launch(self: World) -> bool:
        return self.count("Running") == self.job.workers

    return patch(World, "may_launch", property(may_launch))


@of_mpi("A launcher that waits for its workers starts when those that exist are ready.")
def missing_workers_not_awaited():
    def all_ready(self: World) -> bool:
        return all(pod.status.ready for pod in self.workers.values())

    return patch(World, "all_ready", property(all_ready))


@of_mpi("The launcher of a resumed job starts together with its workers, although it should wait for them.", rare=True)
def launcher_resumed_at_once():
    align = ssh_launcher.align_suspension

    def at_once(world: World, launcher: Any) -> None:
        with patch(World, "may_launch", True):
            align(world, launcher)

    return patch(ssh, "align_suspension", at_once)


@of_mpi("A launcher whose Job was deleted is replaced while its pod still runs.", theme=THEME["launchers"])
def former_launcher_not_awaited():
    look = ssh_world.look

    def careless(*args: Any) -> World:
        world = look(*args)
        world.former_runs = False
        return world

    return patch(ssh, "look", careless)


@of_mpi("The Job of the launcher replaces pods that still terminate.")
def launcher_replaced_early():
    make = ssh_objects.launcher_job

    def early(*args: Any) -> Any:
        made = make(*args)
        return made | {"spec": made["spec"] | {"podReplacementPolicy": "TerminatingOrFailed"}}

    return patch(ssh_launcher, "launcher_job", early)


@of_mpi("The launcher of a suspended job goes on.")
def launcher_not_suspended():
    def keep(world: World, launcher: Any) -> None:
        if not world.job.suspend:
            align(world, launcher)

    align = ssh_launcher.align_suspension
    return patch(ssh, "align_suspension", keep)


@of_mpi("A launcher that was deleted is not created again.")
def launcher_created_once():
    create = ssh_launcher.create_launcher

    def once(world: World) -> CreateOnce | None:
        status = world.seen.job.raw.get("status") or {}
        return None if "Launcher" in (status.get("replicaStatuses") or {}) else create(world)

    return patch(ssh, "create_launcher", once)


@of_mpi("A job ends as soon as a pod of its launcher has succeeded, before the Job has.")
def launcher_pod_decides():
    def by_pod(self: World) -> bool:
        ended = self.launcher is not None and has_ended(self.launcher)
        return ended or any(pod.status.phase == "Succeeded" for pod in self.launcher_pods)

    return patch(World, "launcher_is_done", property(by_pod))


# Workers --------------------------------------------------------------------------------------------------------------


@of_mpi("Workers beyond the number of replicas stay.")
def surplus_workers_stay():
    look = ssh_world.look

    def without(*args: Any) -> World:
        world = look(*args)
        world.surplus.clear()
        return world

    return patch(ssh, "look", without)


@of_mpi("If the launcher is a host, too, scaling down deletes one worker too many, as the index in the label says.")
def index_of_the_label():
    look = ssh_world.look

    def by_label(*args: Any) -> World:
        world = look(*args)
        last = world.job.workers - 1
        if world.job.launcher_works and world.surplus and last in world.workers:
            world.surplus.append(world.workers[last])
        return world

    return patch(ssh, "look", by_label)


@of_mpi("Workers of a suspended job stay.")
def workers_kept_while_suspended():
    delete = ssh_workers.delete

    def keep(world: World, pods: Any) -> None:
        if not world.job.suspend:
            delete(world, pods)

    return patch(ssh, "delete", keep)


@of_mpi("A job whose workers were evicted goes on.", theme=THEME["fair"])
def evictions_ignored():
    return patch(ssh, "evictions", lambda _: 0)


@of_mpi("cleanPodPolicy Running keeps the workers.")
def running_means_none():
    clean = ssh._clean_up

    def none(world: World) -> None:
        if world.job.clean_pod_policy == "Running":
            world.job = replace(world.job, clean_pod_policy="None")
        clean(world)

    return patch(ssh, "_clean_up", none)


@of_mpi("Workers that terminate are counted as active.")
def dying_workers_counted():
    look = ssh_world.look

    def twice(*args: Any) -> World:
        world = look(*args)
        world.workers |= {-1 - number: pod for number, pod in enumerate(world.surplus)}
        return world

    return patch(ssh, "look", twice)


# Hosts and keys -------------------------------------------------------------------------------------------------------


@of_mpi("The ConfigMap with the hosts is written once and never again.")
def stale_hostfile():
    return patch(companions, "_differs", lambda *_: False)


@of_mpi("The hostfile names the workers that run, instead of all.")
def hostfile_of_running_workers():
    whole = ssh_objects.config

    def running(job: Any, seen: Any, *, settled: bool) -> Any:
        found = sum(pod.status.phase == "Running" for _, pod in owned_workers(seen))
        count = min(found, job.workers)
        smaller = replace(job, worker=replace(job.worker, count=count)) if job.worker else job
        return whole(smaller, seen, settled=settled)

    return patch(ssh_world, "config", running)


@of_mpi("A key that was deleted is made anew under running workers.")
def key_changes_under_workers():
    create = CompanionWriter._create_once

    async def in_any_case(self: CompanionWriter, job: Any, action: CreateOnce, key: Any) -> None:
        await create(self, job, replace(action, in_use=""), key)

    return patch(CompanionWriter, "_create_once", in_any_case)


@of_mpi("The key is made anew whenever a pod is created.")
def key_made_anew():
    create = CompanionWriter._create_once

    async def anew(self: CompanionWriter, job: Any, action: CreateOnce, key: Any) -> None:
        await create(self, job, action, key)
        if action.fill is not None:
            await self._client.patch(action.resource, key.name, key.namespace, action.fill())

    return patch(CompanionWriter, "_create_once", anew)


@of_mpi("A key that was deleted is not made again.")
def lost_key_not_replaced():
    create = CompanionWriter._create_once

    async def once(self: CompanionWriter, job: Any, action: CreateOnce, key: Any) -> None:
        if action.fill is None or not job.raw.get("status"):
            await create(self, job, action, key)

    return patch(CompanionWriter, "_create_once", once)


# Transport and status -------------------------------------------------------------------------------------------------


@of_mpi("The annotation alone decides the transport, also of a job that has children of the other one.")
def transport_changes():
    def by_annotation(seen: Any) -> Choice:
        recorded = transport.recorded_transport(seen.job)
        found = recorded or transport._guess(seen.job, seen.options)
        return Choice(found, record=recorded is None)

    @contextmanager
    def plant() -> Iterator[None]:
        with patch(ssh, "choose", by_annotation), patch(kinds, "choose", by_annotation):
            yield

    return plant()


@of_mpi("A job that was created through v2beta1 has transport exec.")
def version_of_the_creator_ignored():
    return patch(transport, "version_of_replicas", lambda _: None)


@of_mpi("The launcher of transport exec may execute commands in all pods of the namespace.")
def launcher_may_reach_every_pod():
    rules = exec_job.role_rules

    def all_pods(job: Any) -> Any:
        return [{name: value for name, value in rule.items() if name != "resourceNames"} for rule in rules(job)]

    return patch(mpi_exec, "role_rules", all_pods)


@of_mpi("A suspended job with transport ssh still says that it runs.")
def running_mpi_job_while_suspended():
    def note(world: World) -> None:
        before = world.builder.status.set

        def without_running(type_: str, *args: Any, **options: Any) -> bool:
            return False if type_ == "Running" else before(type_, *args, **options)

        with patch(world.builder.status, "set", without_running):
            tell(world)

    tell = ssh_status.note_suspension
    return patch(ssh_status, "note_suspension", note)
