"""Plans one reconcile of a DIJob (DI-orchestrator `controllers/dijob_controller.go`, `controllers/dijob.go`).

The operator creates the coordinator and one service per pod; di-server creates all other pods. The coordinator alone
decides the phase.
"""

from __future__ import annotations

from functools import partial

import msgspec

from trainop.engine.actions import Ensure, Need, Plan, Remove, Unstarted
from trainop.engine.failures import Limit
from trainop.engine.fields import as_object, sentence
from trainop.engine.progress import ProgressAccess, access_of
from trainop.engine.root_cause import Failure, append_cause
from trainop.engine.seen import Snapshot
from trainop.engine.startup import STARTUP_DEADLINE, has_started
from trainop.engine.status import FAILED, SUCCEEDED
from trainop.engine.steps.replicas import MAX_PER_PLAN
from trainop.engine.steps.symptoms import check_stuck
from trainop.engine.waiting import INVALID_SPEC
from trainop.kinds.dijob.clean_up import leftover_pods, leftover_services
from trainop.kinds.dijob.job import ALL, DiJob, pod_options
from trainop.kinds.dijob.names import DIJOBS, MAIN_CONTAINER, Role, coordinator_name, default_port
from trainop.kinds.dijob.pods import PodOptions, build_pod
from trainop.kinds.dijob.seen import DiPod
from trainop.kinds.dijob.services import build_service, service_ports
from trainop.kinds.dijob.status import (
    count,
    fail,
    follow_coordinator,
    lower_active,
    note_creation,
    refuse,
    retire_active,
    state_of,
    step_back,
    write_counters,
)
from trainop.kinds.dijob.world import World, look
from trainop.runtime import PODS, SERVICES, Json

_COORDINATOR_TEMPLATE = f"spec.{Role.COORDINATOR.value}.template"

_encode = msgspec.json.Encoder().encode


def plan_dijob(seen: Snapshot) -> Plan:
    """Plans one reconcile. Pure, and never raises, whatever the job contains."""
    if seen.job.metadata.terminating:
        return Plan()
    world = look(seen)
    check_stuck(world.builder, (*world.pods, *world.false_coordinators))
    if world.phase in {SUCCEEDED, FAILED}:
        return _tidy_up(world)
    is_new = not world.phase
    if world.job.errors:
        if is_new and not world.pods:
            refuse(world)
            return world.builder.plan(status_first=True)
        world.builder.warn("validation", "DIJobFailedValidation", sentence(world.job.errors))
    if is_new:
        note_creation(world)
    if as_object(as_object(seen.job.raw.get("spec")).get("runPolicy")).get("suspend") is True:
        return _hold(world, is_new=is_new)
    return _proceed(world, is_new=is_new)


def reject_dijob(_seen: Snapshot, _message: str) -> Plan:
    """A refused pod or service never fails the job: it is retried, and an event says why."""
    return Plan()


def give_up_dijob(seen: Snapshot, cause: Failure) -> Plan:
    """Plans the end of a job at its startup deadline."""
    world = look(seen)
    world.builder.blame(cause)
    fail(world, append_cause(Limit.STARTUP.message.format(world.job.name), cause))
    return _end(world)


def _proceed(world: World, *, is_new: bool) -> Plan:
    if world.false_coordinators:
        names = ", ".join(sorted(pod.metadata.name for pod in world.false_coordinators)[:10])
        text = f"there must be only one coordinator: {names} is ignored"
        world.builder.warn("coordinators", "TooManyCoordinators", text)
    coordinator = world.coordinator
    write_counters(world, count(world.pods))
    if coordinator is not None and follow_coordinator(world, coordinator):
        return _end(world)
    name = coordinator_name(world.job.name)
    if coordinator is None and world.job.coordinator is not None:
        options = world.seen.options
        progress = access_of(world.job.metadata, DIJOBS, options.progress)
        encode = partial(encode_coordinator, world.job, world.job.coordinator, pod_options(options), progress)
        world.builder.actions.append(Ensure(PODS, name, encode, template=_COORDINATOR_TEMPLATE))
    elif coordinator is None:
        text = f"Pod {name} cannot be made from an invalid template"
        world.builder.wait(INVALID_SPEC, text, sentence(world.job.errors))
    _reconcile_services(world)
    if STARTUP_DEADLINE in world.job.metadata.annotations:
        world.builder.unstarted = Unstarted(() if has_started(coordinator) else (name,), 1)
    return world.builder.plan(status_first=is_new, waits=True)


def _hold(world: World, *, is_new: bool) -> Plan:
    """The queue of the job does not let it run: DIJobs have no field `suspend` for users. A coordinator that has ended
    meanwhile ends the job all the same."""
    coordinator = world.coordinator
    has_ended = coordinator is not None and state_of(coordinator) in {"succeeded", "failed"}
    if coordinator is not None and has_ended and follow_coordinator(world, coordinator):
        return _end(world)
    write_counters(world, count(world.pods))
    step_back(world)
    world.builder.actions += leftover_services(world.services)
    world.builder.actions += leftover_pods(world.pods, ALL, graceful=True)
    return world.builder.plan(status_first=is_new)


# Finished -------------------------------------------------------------------------------------------------------------


def _end(world: World) -> Plan:
    if world.phase == SUCCEEDED:
        retire_active(world)
    _clean_up(world)
    return world.builder.plan(status_first=True)


def _tidy_up(world: World) -> Plan:
    """The phase of a finished job never changes. Pods that di-server creates later are deleted, too."""
    _clean_up(world)
    if world.phase == SUCCEEDED:
        retire_active(world)
    elif not world.builder.actions and not any(pod.metadata.terminating for pod in world.pods):
        lower_active(world)
    return world.builder.plan()


def _clean_up(world: World) -> None:
    saves = world.job.facts.grace > 0 and world.phase == FAILED
    graceful = world.seen.options.di_graceful_deletion or saves
    world.builder.actions += leftover_services(world.services)
    world.builder.actions += leftover_pods(world.pods, world.job.clean_pod_policy, graceful=graceful)


# Children -------------------------------------------------------------------------------------------------------------


def _reconcile_services(world: World) -> None:
    """One service per pod. A service may be seen before its pod, which is then looked up before the deletion."""
    served = {service.metadata.name for service in world.services}
    missing = [pod for pod in world.pods if pod.metadata.name not in served][:MAX_PER_PLAN]
    world.builder.actions += [
        Ensure(SERVICES, pod.metadata.name, partial(encode_service, pod), need=Need.NONE) for pod in missing
    ]
    pods = {pod.metadata.name for pod in world.pods}
    unused = (service.metadata for service in world.services if service.metadata.name not in pods)
    world.builder.actions += [
        Remove(SERVICES, metadata.name, metadata.uid, unless_pod=True)
        for metadata in unused
        if not metadata.terminating
    ]


def encode_coordinator(
    job: DiJob, template: Json, options: PodOptions, progress: ProgressAccess | None = None
) -> bytes:
    """The coordinator's pod, which reports the progress of the whole job."""
    added = progress.annotations if progress else None
    pod = build_pod(job.facts, Role.COORDINATOR, template, options, annotations=added)
    return _encode({**pod, "spec": progress.add_to(pod["spec"], MAIN_CONTAINER)} if progress else pod)


def encode_service(pod: DiPod) -> bytes:
    metadata = pod.metadata
    owners = [msgspec.to_builtins(owner) for owner in metadata.owner_references]
    ports = service_ports(metadata.labels, pod.port or default_port(metadata.labels), pod.gpus)
    return _encode(build_service(metadata.namespace, metadata.name, metadata.labels, owners, ports))
