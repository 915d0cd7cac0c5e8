"""The launcher of an MPIJob with transport ssh: a batch Job, which is created, suspended and resumed."""

from __future__ import annotations

from trainop.engine.actions import Action, CreateOnce, Delete, Patch
from trainop.engine.framework import JOB_NAME
from trainop.engine.steps.companions import FINGERPRINT
from trainop.kinds.mpi.ssh_finish import FINISH, expires, release
from trainop.kinds.mpi.ssh_job import DEFAULT_KEY_FOLDER
from trainop.kinds.mpi.ssh_objects import MUTABLE, fixed_part, launcher_job, launcher_template, metadata
from trainop.kinds.mpi.ssh_world import World
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.runtime.objects.mergepatch import merge_patch_between
from trainop.runtime.objects.metadata import Json, Unstructured


def create_launcher(world: World) -> CreateOnce | None:
    """Creates the Job once the workers are as far as it needs them; that of a suspended job at once."""
    if not world.job.suspend and not world.may_launch:
        return None
    _warn_of_restart_policy(world)
    _warn_of_group(world)
    manifest = launcher_job(world.job, world.seen.options, FINGERPRINT)
    if expires(manifest["spec"]):
        manifest["metadata"]["finalizers"] = [FINISH]
    return CreateOnce(LAUNCHER_JOBS, manifest, posted=True, makes_pods=True)


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
            builder.actions.append(Delete(LAUNCHER_JOBS, launcher.metadata.name, launcher.metadata.uid))
            return
        text = "The launcher has been started before, so changes of its template are not applied"
        builder.warn("launcher-template", "LauncherTemplateChanged", text)
    if started:  # the API server changes the template only of Jobs without it
        builder.actions.append(_patch(launcher, {"status": {"startTime": None}}, "status"))
    before = _scheduling((launcher.raw["spec"].get("template") or {}).get("spec") or {})
    fields = merge_patch_between(before, _scheduling(template["spec"]))
    changed = {"metadata": template["metadata"], "spec": fields}
    builder.actions.append(_patch(launcher, {"spec": {"template": changed, "suspend": False}}))


def _scheduling(spec: Json) -> Json:
    return {name: spec[name] for name in MUTABLE if spec.get(name)}


def _patch(launcher: Unstructured, body: Json, subresource: str | None = None) -> Patch:
    return Patch(LAUNCHER_JOBS, launcher.metadata.name, launcher.metadata.uid, body, subresource)


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
