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
from trainop.controllers.children import ChildWriter
from trainop.engine.actions import Ensure
from trainop.engine.addresses import child_name
from trainop.engine.steps import companions, rights
from trainop.kinds.mpi import kinds, transport
from trainop.kinds.mpi.exec import job as exec_job
from trainop.kinds.mpi.hosts import owned_workers
from trainop.kinds.mpi.ssh import clean_up as ssh_clean_up
from trainop.kinds.mpi.ssh import launcher as ssh_launcher
from trainop.kinds.mpi.ssh import objects as ssh_objects
from trainop.kinds.mpi.ssh import plan as ssh
from trainop.kinds.mpi.ssh import status as ssh_status
from trainop.kinds.mpi.ssh import workers as ssh_workers
from trainop.kinds.mpi.ssh import world as ssh_world
from trainop.kinds.mpi.ssh.finish import has_ended
from trainop.kinds.mpi.ssh.world import World
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
    survey = ssh_world.survey

    def careless(*args: Any) -> World:
        world = survey(*args)
        world.former_launcher_pods.clear()
        return world

    return patch(ssh, "survey", careless)


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

    def once(world: World) -> Ensure | None:
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
    survey = ssh_world.survey

    def without(*args: Any) -> World:
        world = survey(*args)
        world.surplus.clear()
        return world

    return patch(ssh, "survey", without)


@of_mpi("If the launcher is a host, too, scaling down deletes one worker too many, as the index in the label says.")
def index_of_the_label():
    survey = ssh_world.survey

    def by_label(*args: Any) -> World:
        world = survey(*args)
        last = world.job.workers - 1
        if world.job.launcher_works and world.surplus and last in world.workers:
            world.surplus.append(world.workers[last])
        return world

    return patch(ssh, "survey", by_label)


@of_mpi("Workers of a suspended job stay.")
def workers_kept_while_suspended():
    delete = ssh_workers.delete

    def keep(world: World, pods: Any, *grace: Any) -> None:
        if not world.job.suspend:
            delete(world, pods, *grace)

    return patch(ssh, "delete", keep)


@of_mpi("A job whose workers were evicted goes on.", theme=THEME["fair"])
def evictions_ignored():
    return patch(ssh, "evictions", lambda _: 0)


@of_mpi("cleanPodPolicy Running keeps the workers.")
def running_means_none():
    clean = ssh_clean_up._clean_up

    def none(world: World) -> None:
        if world.job.clean_pod_policy == "Running":
            world.job = replace(world.job, clean_pod_policy="None")
        clean(world)

    return patch(ssh_clean_up, "_clean_up", none)


@of_mpi("Workers that terminate are counted as active.")
def dying_workers_counted():
    survey = ssh_world.survey

    def twice(*args: Any) -> World:
        world = survey(*args)
        world.workers |= {-1 - number: pod for number, pod in enumerate(world.surplus)}
        return world

    return patch(ssh, "survey", twice)


# Hosts and keys -------------------------------------------------------------------------------------------------------


@of_mpi("The ConfigMap with the hosts is written once and never again.")
def stale_hostfile():
    return patch(companions, "differs", lambda *_: False)


@of_mpi("The hostfile names the workers that run, instead of all.")
def hostfile_of_running_workers():
    whole = ssh_objects.config

    def running(job: Any, seen: Any, *, settled: bool) -> Any:
        found = sum(pod.status.phase == "Running" for _, pod in owned_workers(seen))
        count = min(found, job.workers)
        smaller = replace(job, worker=replace(job.worker, count=count)) if job.worker else job
        return whole(smaller, seen, settled=settled)

    return patch(ssh, "config", running)


@of_mpi("A key that was deleted is made anew only when no worker runs.", theme=THEME["keys"])
def key_waits_for_workers():
    lacks, ensure = ssh_workers._lacks_key, ssh_workers.ensure_key

    def idle(world: World) -> bool:
        return world.count("Running") == 0 and lacks(world)

    def when_idle(world: World, *, needed: bool) -> None:
        ensure(world, needed=needed and world.count("Running") == 0)

    @contextmanager
    def plant() -> Iterator[None]:
        with patch(ssh_workers, "_lacks_key", idle), patch(ssh, "ensure_key", when_idle):
            yield

    return plant()


@of_mpi("The key is made anew whenever a pod is created.")
def key_made_anew():
    create = ChildWriter._fill

    async def anew(self: ChildWriter, job: Any, action: Ensure, key: Any) -> None:
        await create(self, job, action, key)
        if action.content is not None:
            await self._client.patch(action.resource, key.name, key.namespace, action.content.fill())

    return patch(ChildWriter, "_fill", anew)


@of_mpi("A key that was deleted is not made again.")
def lost_key_not_replaced():
    create = ChildWriter._fill

    async def once(self: ChildWriter, job: Any, action: Ensure, key: Any) -> None:
        if action.content is None or not job.raw.get("status"):
            await create(self, job, action, key)

    return patch(ChildWriter, "_fill", once)


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

    def all_pods(workers: Any, **more: Any) -> Any:
        found = rules(workers, **more)
        return [{name: value for name, value in rule.items() if name != "resourceNames"} for rule in found]

    return patch(exec_job, "role_rules", all_pods)


@of_mpi("The launcher may execute commands in any pod that has the name of a worker.", theme=THEME["names"])
def rights_by_name():
    def by_name(builder: Any, grant: Any) -> list[str] | None:
        found = controlled(builder, grant)
        role = builder.job.role(grant.role)
        if found is None or role is None:
            return found
        return [child_name(builder.job.name, role, index) for index in range(role.replicas)]

    controlled = rights._controlled_pods
    return patch(rights, "_controlled_pods", by_name)


@of_mpi("The launcher of a finished job keeps its rights.")
def rights_kept_at_the_end():
    settle = rights._settle

    def keep(builder: Any, grant: Any) -> Any:
        return [] if builder.status.finished else settle(builder, grant)

    return patch(rights, "_settle", keep)


@of_mpi("The launcher may list all pods of the namespace.", theme=THEME["names"])
def launcher_lists_pods():
    return patch(exec_job, "_launcher_lists", lambda *_: True)


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
