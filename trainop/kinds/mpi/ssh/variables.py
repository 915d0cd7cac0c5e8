"""The variables of the launcher of an MPIJob over ssh, by implementation of MPI (mpi-operator
`pkg/controller/mpi_job_controller.go`)."""

from __future__ import annotations

from trainop.engine.framework import variable
from trainop.kinds.mpi.hosts import CONFIG_FOLDER, HOSTFILE
from trainop.kinds.mpi.ssh.job import INTEL, OPEN_MPI, SshJob
from trainop.runtime import Json

_PATIENCE = "-o ConnectionAttempts=10"
"""The worker may not be reachable at once."""


def launcher_variables(job: SshJob) -> list[Json]:
    """The variables that the operator appends to the launcher's first container."""
    hosts, slots = f"{CONFIG_FOLDER}/{HOSTFILE}", str(job.slots)
    is_rsh = job.extras.remote_shell == "rsh"
    found: list[tuple[str, str]] = [("K_MPI_JOB_ROLE", "launcher")]
    if job.implementation == OPEN_MPI:
        shell = ("OMPI_MCA_plm_rsh_agent", "rsh") if is_rsh else ("OMPI_MCA_plm_rsh_args", _PATIENCE)
        found += [("OMPI_MCA_orte_keep_fqdn_hostnames", "true"), ("OMPI_MCA_orte_default_hostfile", hosts), shell]
        found += [("OMPI_MCA_orte_set_default_slots", slots)]
        if job.extras.open_mpi_version == "5":
            shell = ("PRTE_MCA_plm_ssh_agent", "rsh") if is_rsh else ("PRTE_MCA_plm_ssh_args", _PATIENCE)
            found += [("PRTE_MCA_prte_keep_fqdn_hostnames", "true"), ("PRTE_MCA_prte_default_hostfile", hosts), shell]
            found += [("PRTE_MCA_prte_set_default_slots", slots)]
    elif job.implementation == INTEL:
        shell = ("I_MPI_HYDRA_BOOTSTRAP", "rsh") if is_rsh else ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", _PATIENCE)
        found += [("I_MPI_HYDRA_HOST_FILE", hosts), shell, ("I_MPI_PERHOST", slots)]
    else:
        shell = ("HYDRA_LAUNCHER", "rsh") if is_rsh else ("HYDRA_LAUNCH_EXTRA_ARGS", _PATIENCE)
        found += [("HYDRA_HOST_FILE", hosts), shell]
    if not job.launcher_works:
        found += [("NVIDIA_VISIBLE_DEVICES", ""), ("NVIDIA_DRIVER_CAPABILITIES", "")]
    return [variable(name, value) for name, value in found]
