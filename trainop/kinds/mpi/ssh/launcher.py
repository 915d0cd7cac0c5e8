"""The launcher of an MPIJob with transport ssh: a batch Job, which is created, suspended and resumed."""

from __future__ import annotations

from dataclasses import replace

from trainop.engine.actions import Action, Ensure, How, Patch, Remove
from trainop.engine.framework import JOB_NAME
from trainop.engine.steps.companions import FINGERPRINT
from trainop.kinds.mpi.hosts import LAUNCHER, REPLICA_SPECS
from trainop.kinds.mpi.ssh.finish import FINISH, expires, release
from trainop.kinds.mpi.ssh.job import DEFAULT_KEY_FOLDER
from trainop.kinds.mpi.ssh.objects import (
    AVOIDED,
    MUTABLE,
    REPLACEMENT,
    fixed_part,
    launcher_job,
    launcher_template,
    metadata,
)
from trainop.kinds.mpi.ssh.world import ENDED_PHASES, World
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.runtime import Json, Unstructured
from trainop.runtime.lowlevel import merge_patch_between, read_time

DEFAULT_BACKOFF_LIMIT = 6
"""Of a batch Job (Kubernetes API, JobSpec)."""
LOST_AFTER = 30.0
"""Seconds after the grace period of a launcher's pod from which its node counts as lost."""
_TEMPLATE = f"spec.{REPLICA_SPECS}.{LAUNCHER}.template"


def create_launcher(world: World) -> Ensure | None:
    """Creates the Job once the workers are as far as it needs them; that of a suspended job at once."""
    if not world.job.suspend and not world.may_launch:
        return None
    _warn_of_restart_policy(world)
    _warn_of_group(world)
    manifest = launcher_job(world.job, world.seen.options, FINGERPRINT)
    manifest["spec"] |= _remaining_limits(world)
    if expires(manifest["spec"]):
        manifest["metadata"]["finalizers"] = [FINISH]
    name = manifest["metadata"]["name"]
    return Ensure(
        LAUNCHER_JOBS, name, manifest=manifest, how=How.FILL, posted=True, makes_pods=True, template=_TEMPLATE
    )


def _remaining_limits(world: World) -> Json:
    """The limits of a launcher's Job that differ from those of the MPIJob, since they hold for former Jobs, too."""
    failures, limits, began = world.history.failures, world.job.job_limits, world.builder.status.start_time
    if not failures:
        return {}
    left: Json = {"backoffLimit": max(0, limits.get("backoffLimit", DEFAULT_BACKOFF_LIMIT) - failures)}
    if "activeDeadlineSeconds" in limits and began is not None:
        passed = int((world.seen.now - began).total_seconds())
        left["activeDeadlineSeconds"] = max(1, limits["activeDeadlineSeconds"] - passed)
    return left


def _warn_of_restart_policy(world: World) -> None:
    if world.job.launcher.template["spec"].get("restartPolicy"):
        text = "Restart policy in pod template overridden by restart policy in replica spec"
        world.builder.warn("restart-policy", "SetPodTemplateRestartPolicy", text)


def _warn_of_group(world: World) -> None:
    """The kubelet gives a volume to the `fsGroup` of its pod, and mode 0600 becomes 0640."""
    context = world.job.launcher.template["spec"].get("securityContext")
    grouped = isinstance(context, dict) and context.get("fsGroup") is not None
    if grouped and world.job.key_folder.rstrip("/") == DEFAULT_KEY_FOLDER:
        text = (
            "fsGroup of the launcher's template lets a group read the key in /root/.ssh, and ssh refuses such a key: "
            "remove fsGroup, or set sshAuthMountPath to the folder of another user"
        )
        world.builder.warn("fs-group", "SSHKeyRefused", text)


def align_suspension(world: World, launcher: Unstructured) -> None:
    """Suspends or resumes the Job as the MPIJob. It is resumed only when its workers are as far as it needs them."""
    builder, suspend = world.builder, world.job.suspend
    if launcher.metadata.terminating:
        return  # it is created again when it is gone
    if JOB_NAME not in launcher.metadata.labels:
        builder.actions.append(_patch(launcher, {"metadata": _claim(world, launcher)}))
    if suspend and not world.launcher_is_suspended:
        builder.actions.append(suspend_launcher(launcher))
    elif not suspend and world.launcher_is_suspended and world.may_launch:
        _resume_launcher(world, launcher)


def move_launcher(world: World, launcher: Unstructured) -> None:
    """Suspends a Job of which no pod has a node, if other nodes are avoided now than those of its template, which can
    be changed only then: the next plan resumes it with the new ones. The Job controller deletes a pending pod, and
    counts no failure."""
    if launcher.metadata.terminating or world.launcher_is_suspended:
        return
    living = (pod for pod in world.launcher_pods if pod.status.phase not in ENDED_PHASES)
    if any(pod.spec.node_name or pod.metadata.terminating for pod in living):
        return
    wanted = world.job.avoidance.nodes if world.job.avoidance else ()
    if (_avoided_nodes(launcher) or "") != ",".join(wanted):
        world.builder.actions.append(suspend_launcher(launcher))


def _avoided_nodes(launcher: Unstructured) -> str | None:
    """What the template of the Job says about nodes that its pods avoid; None if it says nothing."""
    template = (launcher.raw.get("spec") or {}).get("template") or {}
    found: str | None = ((template.get("metadata") or {}).get("annotations") or {}).get(AVOIDED)
    return found


def _claim(world: World, launcher: Unstructured) -> Json:
    """The metadata by which the operator takes over a Job of mpi-operator."""
    found = launcher.metadata
    claimed: Json = {"labels": metadata(world.job, "")["labels"]}
    if expires(launcher.raw.get("spec")) and FINISH not in found.finalizers:
        claimed |= {"finalizers": [*found.finalizers, FINISH], "resourceVersion": found.resource_version}
    return claimed


def _resume_launcher(world: World, launcher: Unstructured) -> None:
    """Resumes the Job with the labels, annotations and scheduling fields of the MPIJob. Other changes of the template
    need a new Job, which is possible as long as it has never been started."""
    template, builder = launcher_template(world.job, world.seen.options), world.builder
    started = world.launcher_status.get("startTime") is not None
    made_from = launcher.metadata.annotations.get(FINGERPRINT)
    _warn_of_restart_policy(world)
    if made_from is not None and made_from != fixed_part(template):
        if not started:
            builder.actions += [each for each in (release(launcher),) if each is not None]
            builder.actions.append(Remove(LAUNCHER_JOBS, launcher.metadata.name, launcher.metadata.uid))
            return
        text = "The launcher has been started before, so changes of its template are not applied"
        builder.warn("launcher-template", "LauncherTemplateChanged", text)
    if started:  # the API server changes the template only of Jobs without it
        cleared = _patch(launcher, {"status": {"startTime": None}}, "status")
        builder.actions.append(replace(cleared, makes_pods=True))
    before = _scheduling((launcher.raw["spec"].get("template") or {}).get("spec") or {})
    fields = merge_patch_between(before, _scheduling(template["spec"]))
    made = template["metadata"]
    if _avoided_nodes(launcher) is not None and world.job.avoidance is None:
        made = {**made, "annotations": {AVOIDED: None, **(made.get("annotations") or {})}}
    changed = {"metadata": made, "spec": fields}
    resumed = _patch(launcher, {"spec": {"template": changed, "suspend": False}})
    builder.actions.append(replace(resumed, makes_pods=True))


def _scheduling(spec: Json) -> Json:
    return {name: spec[name] for name in MUTABLE if spec.get(name)}


def _patch(launcher: Unstructured, body: Json, subresource: str | None = None) -> Patch:
    return Patch(LAUNCHER_JOBS, launcher.metadata.name, launcher.metadata.uid, body, subresource)


def replace_lost(world: World, launcher: Unstructured) -> None:
    """Lets the Job controller replace a launcher whose pod never ends, usually because its node is gone. With
    `podReplacementPolicy` Failed it waits for the end, which only the removal of the Node object brings about; with the
    default, that of mpi-operator up to v0.8.0, the terminating pod counts as failed at once."""
    spec = launcher.raw.get("spec") or {}
    if launcher.metadata.terminating or world.job.suspend or spec.get("podReplacementPolicy") != REPLACEMENT:
        return
    now = world.seen.wall or world.seen.now
    living = (pod.metadata for pod in world.launcher_pods if pod.status.phase not in ENDED_PHASES)
    ends = [end for pod in living if (end := read_time(pod.deletion_timestamp)) is not None]
    if not ends:
        return
    left = LOST_AFTER - (now - min(ends)).total_seconds()
    if left > 0:
        world.builder.requeue_after(left)
    else:
        world.builder.actions.append(_patch(launcher, {"spec": {"podReplacementPolicy": "TerminatingOrFailed"}}))


def suspend_launcher(launcher: Unstructured) -> Patch:
    """The Job controller deletes the launcher's pod."""
    return _patch(launcher, _SUSPEND)


def leave_launcher(world: World) -> list[Action]:
    """Ends the operator's hold on the Job of a job that has ended. A Job that has not ended is suspended."""
    if world.launcher is None:
        return []
    suspend = not world.launcher_is_done and not world.launcher_is_suspended
    patch = release(world.launcher, _SUSPEND if suspend else None)
    return [] if patch is None else [patch]


_SUSPEND: Json = {"spec": {"suspend": True}}
