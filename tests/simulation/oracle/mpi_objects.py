"""The specified form of what an MPIJob with transport ssh consists of (mpi-v2beta1 §3, §5)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.oracle.kinds import LABELS, Json
from tests.simulation.oracle.mpi import MpiJob

VARIABLES = {
    "OpenMPI": ("OMPI_MCA_orte_keep_fqdn_hostnames", "OMPI_MCA_orte_default_hostfile", "OMPI_MCA_plm_rsh_args"),
    "Intel": ("I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "I_MPI_PERHOST"),
    "MPICH": ("HYDRA_HOST_FILE", "HYDRA_LAUNCH_EXTRA_ARGS"),
}
"""Of the launcher, by implementation; Open MPI has one more with the slots."""
LIMITS = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")


def worker_differences(job: MpiJob, pod: Json) -> Iterator[str]:
    """Between a new worker and what the spec asks for."""
    metadata, spec = pod["metadata"], pod["spec"]
    names = list(job.worker_names())
    if metadata["name"] not in names:
        yield f"{metadata['name']} is none of {names}"
        return
    index = names.index(metadata["name"]) + job.launcher_works
    labels = {"job-role": "worker", "job-name": job.name, "operator-name": "mpi-operator", "replica-index": str(index)}
    yield from _differ("labels", _own_labels(metadata), labels)
    yield from _differ("hostname", spec.get("hostname"), metadata["name"])
    yield from _pod_differences(job, "Worker", spec)
    searches = (spec.get("dnsConfig") or {}).get("searches")
    yield from _differ("searches", searches, [f"{job.name}.{job.namespace}.svc.cluster.local"])
    yield from _differ("command", spec["containers"][0].get("command"), ["/usr/sbin/sshd", "-De"])


def launcher_differences(job: MpiJob, launcher: Json) -> Iterator[str]:
    """Between a new batch Job and what the spec asks for."""
    spec = launcher["spec"]
    template = spec["template"]
    yield from _differ("name", launcher["metadata"]["name"], f"{job.name}-launcher")
    given = {name: job.policy[name] for name in LIMITS if job.policy.get(name) is not None}
    found = {name: spec[name] for name in LIMITS if name in spec}
    if "backoffLimit" not in given:
        found.pop("backoffLimit", None)  # the API server's default
    yield from _differ("limits", found, given)
    yield from _differ("podReplacementPolicy", spec.get("podReplacementPolicy"), "Failed")
    yield from _differ("suspend", bool(spec.get("suspend")), job.suspended)
    labels = {"job-role": "launcher", "job-name": job.name, "operator-name": "mpi-operator"}
    labels |= {"replica-index": "0"} if job.launcher_works else {}
    yield from _differ("labels", _own_labels(template["metadata"]), labels)
    yield from _differ("hostname", template["spec"].get("hostname"), f"{job.name}-launcher")
    yield from _pod_differences(job, "Launcher", template["spec"])
    names = {each["name"] for each in template["spec"]["containers"][0].get("env") or ()}
    if missing := set(VARIABLES[job.spec.get("mpiImplementation") or "OpenMPI"]) - names:
        yield f"the variables {sorted(missing)} are missing"


def _pod_differences(job: MpiJob, role: str, spec: Json) -> Iterator[str]:
    default = {"Launcher": "OnFailure", "Worker": "Never"}[role]
    policy = job.spec["mpiReplicaSpecs"][role].get("restartPolicy") or default
    yield from _differ("restartPolicy", spec.get("restartPolicy"), policy)
    yield from _differ("subdomain", spec.get("subdomain"), job.name)
    secrets = [each["secret"]["secretName"] for each in spec.get("volumes") or () if "secret" in each]
    yield from _differ("secrets", secrets, [f"{job.name}-ssh"])
    roles = [each.get("value") for each in spec["containers"][0].get("env") or () if each["name"] == "K_MPI_JOB_ROLE"]
    yield from _differ("K_MPI_JOB_ROLE", roles, [role.lower()])


def _own_labels(metadata: Json) -> dict[str, str]:
    labels = metadata.get("labels") or {}
    return {name.removeprefix(LABELS): value for name, value in labels.items() if name.startswith(LABELS)}


def _differ(what: str, found: object, wanted: object) -> Iterator[str]:
    if found != wanted:
        yield f"{what} {found} instead of {wanted}"
