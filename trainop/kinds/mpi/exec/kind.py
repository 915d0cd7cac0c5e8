"""MPIJob with transport exec (training-operator `pkg/controller.v1/mpi`): the launcher reaches workers by
`kubectl exec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop.engine.actions import Need
from trainop.engine.fields import Fields
from trainop.engine.framework import (
    GROUP,
    PLAIN_TEXTS,
    Companion,
    CompanionKind,
    Framework,
    Mount,
    NameTaken,
    PodAdditions,
    Progress,
    Replicas,
    RoleAdditions,
    Services,
    Tally,
    variable,
)
from trainop.engine.job import Job, Role
from trainop.engine.leaders import follow
from trainop.engine.schema.openapi import int32, text
from trainop.engine.seen import Options, Snapshot
from trainop.engine.steps.rights import BINDING, ROLE
from trainop.kinds.mpi.exec.job import (
    KUBECTL_FOLDER,
    account_of,
    discover_hosts,
    grant,
    hostfile,
    is_container_name,
    is_gpu_launcher,
    kubexec,
    launcher_spec,
    slots_of,
    workers_of,
)
from trainop.kinds.mpi.hosts import (
    CONFIG,
    CONFIG_FOLDER,
    DISCOVER,
    HOSTFILE,
    LAUNCHER,
    MPI_OPERATOR,
    REPLICA_SPECS,
    TRAINING_OPERATOR,
    WORKER,
    check_size,
    config_companion,
    config_name,
    find_config,
    pace,
    running_hosts,
    size_of_lines,
)
from trainop.runtime import SERVICE_ACCOUNTS, Json, Resource

ACCOUNT = CompanionKind(SERVICE_ACCOUNTS, Need.JOB, metadata_only=True, permission_optional=True, posted=True)
KUBEXEC = "kubexec.sh"
CONTROLLER = "mpijob-controller"
KUBECTL_VOLUME, CONFIG_VOLUME = "mpi-job-kubectl", "mpi-job-config"
_MODES = {KUBEXEC: 0o555, HOSTFILE: 0o444, DISCOVER: 0o555}
_DELIVERY_RESOURCES = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}

WAIT = """\
set -- $(grep -o -- '^.*-worker-[0-9]* ' {folder}/hostfile)
while [ $# -gt 0 ]; do
  asked=$(($# < {most} ? $# : {most}))
  found=$({kubectl}/kubectl get pods $(printf '%s\\n' "$@" | head -n "$asked") --namespace "$NAMESPACE" \\
    --no-headers --output custom-columns=NAME:.metadata.name,PHASE:.status.phase 2>&1)
  running=$(printf '%s\\n' "$found" | grep -c ' Running$')
  if [ "$running" -ge "$asked" ]; then
    shift "$asked"
    continue
  fi
  echo "$running of $asked workers are running, $# are left"
  printf '%s\\n' "$found" | grep -m 1 '^Error'
  sleep 2
done
"""
"""The init container of the launcher: `mpirun` fails if it starts before the workers run. The launcher may read each
worker by its name, and only once the job controls them all."""

MOST_ASKED = 200
"""Workers that one kubectl asks for: they are as many requests, and a command line is limited."""


def check(job: Job, fields: Fields) -> None:
    """Validates the fields that only an MPIJob has."""
    fields.integer("spec.slotsPerWorker", job.spec.get("slotsPerWorker"), minimum=0)
    main = fields.text("spec.mainContainer", job.spec.get("mainContainer"))
    if main and not is_container_name(main):
        fields.invalid("spec.mainContainer", main, "must be the name of a container")
    workers, line = workers_of(job), f"{job.name}-worker- slots={slots_of(job)}\n"
    check_size(fields, 1024 + 2 * size_of_lines(workers, len(line)), workers)


def _config(job: Job, seen: Snapshot) -> Companion:
    workers = workers_of(job)
    running = running_hosts(seen, workers)
    script = pace(find_config(seen), discover_hosts(job, running), seen.now, complete=len(running) == workers)
    return config_companion(job.name, script, {HOSTFILE: hostfile(job), KUBEXEC: kubexec(job)})


def companions(job: Job, seen: Snapshot) -> Sequence[Companion]:
    """ServiceAccount and ConfigMap. An account that the user has named is used as it is."""
    name = f"{job.name}-launcher"
    own = [Companion(ACCOUNT, name, "", dict, labels={"app": job.name})] if account_of(job) == name else []
    return [*own, _config(job, seen)]


# Companions and pods --------------------------------------------------------------------------------------------------


def additions(job: Job, options: Options) -> PodAdditions:
    """Variables for the launcher; the ConfigMap for all; kubectl and a waiting init container for the launcher."""
    variables = _launcher_variables(job)
    worker = RoleAdditions(command=("sleep",), args=("365d",), mounts=_mounts(job, WORKER))
    of_role = {LAUNCHER: _launcher_additions(job, options), WORKER: worker}
    return PodAdditions(
        lambda role, _index: variables if role.type == LAUNCHER else (),
        in_all_containers=False,
        of_role=lambda role: of_role[role.type],
    )


def _mounts(job: Job, role: str) -> list[Mount]:
    files = list(_MODES) if role == LAUNCHER else [KUBEXEC]
    items = [{"key": file, "path": file, "mode": _MODES[file]} for file in files]
    return [Mount(CONFIG_VOLUME, {"configMap": {"name": config_name(job.name), "items": items}}, CONFIG_FOLDER)]


def _launcher_additions(job: Job, options: Options) -> RoleAdditions:
    return RoleAdditions(
        service_account=account_of(job),
        mounts=[Mount(KUBECTL_VOLUME, {"emptyDir": {}}, KUBECTL_FOLDER), *_mounts(job, LAUNCHER)],
        init_containers=[_delivery(job, options), *([_waiting(job, options)] if workers_of(job) else [])],
    )


def _delivery(job: Job, options: Options) -> Json:
    """The init container that copies kubectl to a volume of the launcher."""
    mounts = {KUBECTL_VOLUME: KUBECTL_FOLDER, CONFIG_VOLUME: CONFIG_FOLDER}
    return {
        "name": "kubectl-delivery",
        "image": options.mpi_delivery_image,
        "imagePullPolicy": "IfNotPresent",
        "env": [variable("TARGET_DIR", KUBECTL_FOLDER), variable("NAMESPACE", job.namespace)],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
        "resources": {"limits": _DELIVERY_RESOURCES, "requests": _DELIVERY_RESOURCES},
    }


def _waiting(job: Job, options: Options) -> Json:
    """The init container that ends when all workers in the hostfile run. Gang schedulers need the launcher's pod from
    the beginning, so it cannot be created later instead."""
    script = WAIT.format(folder=CONFIG_FOLDER, kubectl=KUBECTL_FOLDER, most=MOST_ASKED)
    return {**_delivery(job, options), "name": "wait-for-workers", "command": ["/bin/sh", "-c", script]}


def _launcher_variables(job: Job) -> list[Json]:
    """The variables of Open MPI and Intel MPI. The user's choice of a bootstrap for Intel MPI stays."""
    script = f"{CONFIG_FOLDER}/{KUBEXEC}"
    found = [
        variable("OMPI_MCA_plm_rsh_agent", script),
        variable("OMPI_MCA_orte_default_hostfile", f"{CONFIG_FOLDER}/{HOSTFILE}"),
    ]
    if not is_gpu_launcher(job):
        found += [variable(name, "") for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")]
    first = (launcher_spec(job).get("containers") or [{}])[0]
    names = [each.get("name") for each in first.get("env") or () if isinstance(each, dict)]
    given = {name for name in names if isinstance(name, str)}
    intel = {"I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": script}
    return found + [variable(name, value) for name, value in intel.items() if name not in given]


def progress(job: Job, tallies: Mapping[str, Tally]) -> Progress:
    """The job runs while launcher and workers all run, and has succeeded when the launcher has."""
    found = follow(job.role(LAUNCHER), tallies)
    workers = job.role(WORKER)
    all_run = workers is None or tallies[WORKER].active == workers.replicas
    return Progress(running=found.running and all_run, succeeded=found.succeeded)


def _is_launcher(_job: Job, role: Role, _index: int) -> bool:
    return role.type == LAUNCHER


def eviction(job: Job, role: Role, count: int) -> str:
    """The message for evicted workers, or for an evicted launcher, whose eviction upstream names in the reason alone
    (training-operator `pkg/controller.v1/mpi/mpijob_controller.go`, `updateMPIJobStatus`)."""
    if role.type == LAUNCHER:
        return f"MPIJob {job.namespace}/{job.name} has failed"
    return f"{count}/{role.replicas} workers are evicted"


MPI_EXEC = Framework(
    resource=Resource(GROUP, "v1", "mpijobs", "MPIJob"),
    name="mpi",
    controller=CONTROLLER,
    replica_specs=REPLICA_SPECS,
    roles={
        LAUNCHER: Replicas(1, 1, services=Services.NONE, indexed=False),
        WORKER: Replicas(default=0, services=Services.NONE),
    },
    required_roles=(LAUNCHER,),
    container="",
    port_name="",
    port=0,
    managers=(TRAINING_OPERATOR, MPI_OPERATOR, ""),
    clean_pod_policy_in_spec=True,
    is_master=_is_launcher,
    additions=additions,
    companion_kinds=(ACCOUNT, CONFIG, ROLE, BINDING),
    companions=companions,
    grant=grant,
    progress=progress,
    support_roles=(WORKER,),
    eviction=eviction,
    template_warnings="SettedPodTemplate",
    adopts=False,  # as upstream; what is the job's may be reached by its launcher
    name_taken=NameTaken(
        "ErrResourceExists", 'Resource "{name}" of MPIJobKind "{kind}" already exists and is not managed by MPIJob'
    ),
    rules=check,
    texts=lambda _job: PLAIN_TEXTS._replace(running_event="{kind} {namespace}/{name} is running"),
    spec_fields={
        "slotsPerWorker": int32("Slots of each worker in the hostfile; 1 if not given."),
        "cleanPodPolicy": text("Used if runPolicy has no cleanPodPolicy."),
        "mainContainer": text("The container of the workers in which the launcher starts processes (transport exec)."),
    },
    deleted_as="Job",
)
