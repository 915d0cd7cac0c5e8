"""MPIJob with transport ssh (mpi-operator `pkg/controller/mpi_job_controller.go`): the launcher is a batch Job that
reaches the workers by ssh."""

from __future__ import annotations

from dataclasses import replace

from trainop.engine.actions import LOOK_AGAIN, Ensure, Event, How, Notice, Patch, Plan, Wait
from trainop.engine.fields import sentence
from trainop.engine.framework import JOB_ROLE
from trainop.engine.parse import MULTIKUEUE, run_policy_of
from trainop.engine.root_cause import LAST_FAILURE, refusal
from trainop.engine.seen import Snapshot
from trainop.engine.status import GANG_READY, WAITING, Status
from trainop.engine.steps.companions import reconcile_companions
from trainop.engine.steps.gang import GangStep, disband
from trainop.engine.steps.replicas import MAX_PER_PLAN
from trainop.engine.steps.symptoms import check_stuck
from trainop.engine.waiting import INVALID_SPEC
from trainop.kinds.mpi.hosts import CONFIG
from trainop.kinds.mpi.ssh.cause import cause_of_eviction, cause_of_restart
from trainop.kinds.mpi.ssh.clean_up import end, tidy_up
from trainop.kinds.mpi.ssh.finish import release_unneeded
from trainop.kinds.mpi.ssh.gang import gang_view
from trainop.kinds.mpi.ssh.job import parse_ssh
from trainop.kinds.mpi.ssh.launcher import align_suspension, create_launcher, move_launcher, replace_lost
from trainop.kinds.mpi.ssh.objects import config, service, service_role
from trainop.kinds.mpi.ssh.restart import continue_restart
from trainop.kinds.mpi.ssh.saving import awaits_checkpoint, note_ends, restart_together
from trainop.kinds.mpi.ssh.status import end_with_launcher, evictions, fail, note_creation, record
from trainop.kinds.mpi.ssh.waits import find_unstarted, note_waits
from trainop.kinds.mpi.ssh.workers import all_workers, create_missing, delete, ensure_key, replace_failed
from trainop.kinds.mpi.ssh.world import World, are_hosts_settled, survey
from trainop.kinds.mpi.transport import SSH, choose, leave_to_other
from trainop.runtime import SERVICES, Unstructured

REFUSED = "Refused"
"""The reason of a `lastFailure` if the API server refused an object of the job."""


def plan_ssh(seen: Snapshot) -> Plan:
    """Plans one reconcile. A job of the other transport is left to its controller. Never raises."""
    given_up = seen.job.metadata.terminating or is_of_multikueue(seen.job)
    made = Plan() if given_up else _plan(seen)
    patched = {action.uid for action in made.actions if isinstance(action, Patch)}
    released = tuple(patch for patch in release_unneeded(seen, given_up=given_up) if patch.uid not in patched)
    return replace(made, actions=(*released, *made.actions)) if released else made


def _plan(seen: Snapshot) -> Plan:
    choice = choose(seen)
    if choice.transport != SSH:
        return leave_to_other(choice)
    job, errors = parse_ssh(seen.job, seen.options)
    invalid = Event("Warning", "ValidationError", f"Found validation errors: {sentence(errors)}") if errors else None
    notices = (Notice("validation", invalid),) if invalid else ()
    if job is None or (errors and not _has_begun(seen)):
        text = f"The job is invalid, so that nothing is created: {sentence(errors)}"
        return Plan(annotations=choice.annotations(), notices=notices, waits=(Wait(INVALID_SPEC, text),))
    world = survey(seen, job)
    world.builder.notices += [*notices, *choice.notices()]
    world.builder.annotations |= choice.annotations()
    check_stuck(world.builder, (*all_workers(world), *world.launcher_pods), world.foreign_pods)
    if world.builder.status.finished:
        return tidy_up(world)
    return _proceed(world)


def reject_ssh(seen: Snapshot, message: str) -> Plan:
    """Plans the failure of a job because the API server refused one of its manifests with `message`."""
    job, _ = parse_ssh(seen.job, seen.options)
    if job is None:
        return Plan()
    world = survey(seen, job)
    if world.builder.status.finished:
        return Plan()
    note_creation(world)
    world.builder.status.put(LAST_FAILURE, refusal(REFUSED, message, seen.now).as_json())
    fail(world, "MPIJobFailed", message)
    return end(world)


def is_of_multikueue(job: Unstructured) -> bool:
    """Whether another controller has the job. An unknown name is an error of validation instead."""
    return run_policy_of(job.raw).get("managedBy") == MULTIKUEUE


def _has_begun(seen: Snapshot) -> bool:
    """Whether an earlier reconcile accepted the job: it then goes on with invalid fields at their defaults."""
    conditions = Status(seen.job.raw.get("status"), seen.now).conditions
    return any(condition.get("type") != WAITING for condition in conditions)


# Not finished ---------------------------------------------------------------------------------------------------------


def _proceed(world: World) -> Plan:
    builder, status = world.builder, world.builder.status
    note_creation(world)
    if status.start_time is None and not world.job.suspend:
        status.start()
    if restart_together(world):
        return end(world) if status.finished else builder.plan(waits=True)
    restarting = world.restarting and not world.job.suspend
    if (
        world.launcher is not None
        and world.launcher_is_done
        and not (restarting and world.launcher.metadata.terminating)
    ):
        end_with_launcher(world)
        return end(world)
    if restarting:
        return continue_restart(world)
    if not world.job.suspend and not world.job.extras.replace_failed and (evicted := evictions(world)):
        record(world, launcher_exists=world.launcher is not None)
        builder.blame(cause_of_eviction(world))
        fail(world, "MPIJobEvicted", f"{evicted}/{world.job.workers} workers are evicted")
        return end(world)
    builder.blame(cause_of_restart(world))
    if awaits_checkpoint(world):
        return builder.plan()
    launching = _reconcile_children(world)
    record(world, launcher_exists=launching or world.launcher is not None)
    note_ends(world)
    if not world.job.suspend:
        note_waits(world, launching=launching)
        builder.unstarted = find_unstarted(world)
    return builder.plan(waits=not world.job.suspend)


def _reconcile_children(world: World) -> bool:
    """Creates, changes and deletes children, in upstream's order, up to the first whose name is taken. Returns whether
    the launcher is being created."""
    if not _reconcile_service(world):
        return False
    files = config(world.job, world.seen, settled=are_hosts_settled(world.seen, world.job))
    if not reconcile_companions(world.builder, (CONFIG,), (files,)):
        return False
    if world.job.suspend:
        disband(world.builder)
        delete(world, all_workers(world))
        creates: list[Ensure] = []
        complete = True
    else:
        if not _write_group(world):
            return False
        delete(world, world.surplus)
        replace_failed(world)
        creates = create_missing(world)
        complete = len(creates) < MAX_PER_PLAN
    if _warn_of_taken(world):
        return False
    launcher = create_launcher(world) if complete and world.launcher is None else None
    ensure_key(world, needed=bool(creates or launcher))
    world.builder.actions += creates
    if launcher is not None:
        world.builder.actions.append(launcher)
    elif world.launcher is not None and complete:
        align_suspension(world, world.launcher)
        replace_lost(world, world.launcher)
        if not world.job.suspend:
            move_launcher(world, world.launcher)
    return launcher is not None


def _write_group(world: World) -> bool:
    """Creates or changes the PodGroup, if there is a gang scheduler. Returns whether nothing impedes it."""
    scheduler = world.seen.options.gang
    if scheduler is None:
        world.builder.status.remove(GANG_READY)  # gang scheduling may have been on before
        return True
    gang = GangStep(world.builder, gang_view(world.job, world.seen.job.raw["spec"]), scheduler, queue_follows=True)
    group = gang.form(complete=len(world.workers) == world.job.workers)
    reconcile_companions(world.builder, gang.kinds, group)
    return not gang.impeded


def _reconcile_service(world: World) -> bool:
    """Returns False if the Service of that name is another owner's."""
    job, uid = world.job, ""
    for found in (each.metadata for each in world.seen.services if each.metadata.name == job.name):
        if not found.controlled_by(job.metadata.uid):
            world.builder.warn_name_taken("Service", job.name)
            return False
        if found.terminating or found.labels.get(JOB_ROLE) == service_role(job):
            return True
        uid = found.uid
    made = Ensure(SERVICES, job.name, manifest=service(job), how=How.APPLY, uid=uid, posted=True)
    world.builder.actions.append(made)
    return True


def _warn_of_taken(world: World) -> bool:
    """Returns whether objects of others have names of children. Those about to be deleted only delay the job."""
    for kind, found in world.foreign_objects:
        if world.builder.is_going(found):
            world.builder.requeue_after(LOOK_AGAIN)
        else:
            world.builder.warn_name_taken(kind, found.name)
    return bool(world.foreign_objects)
