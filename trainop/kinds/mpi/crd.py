"""The CRD of MPIJob: versions v1 and v2beta1 with one union schema and without conversion.

Each version accepts all fields of the other, so that nothing is pruned whichever version a client uses, and there is no
conversion webhook whose outage would stop garbage collection. Defaults and columns are those of upstream's CRDs.
"""

from __future__ import annotations

import copy

from trainop.engine.schema.crd import crd
from trainop.engine.schema.openapi import flag, text
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.mpi.ssh.job import AT_STARTUP, DEFAULT_KEY_FOLDER, INTEL, MPICH, OPEN_MPI, WHEN_READY
from trainop.kinds.mpi.transport import MPI_V1, MPI_V2
from trainop.runtime import Json

_SSH_FIELDS: Json = {
    "runLauncherAsWorker": flag("The launcher is a host as well (transport ssh)."),
    "sshAuthMountPath": text("Where the ssh key is mounted (transport ssh)."),
    "launcherCreationPolicy": text(
        "Whether the launcher starts at once or when all workers are ready (transport ssh).",
        enum=[AT_STARTUP, WHEN_READY],
    ),
    "mpiImplementation": text("The implementation of MPI (transport ssh).", enum=[OPEN_MPI, INTEL, MPICH]),
}
_V2_DEFAULTS: Json = {
    "slotsPerWorker": 1,
    "runLauncherAsWorker": False,
    "sshAuthMountPath": DEFAULT_KEY_FOLDER,
    "launcherCreationPolicy": AT_STARTUP,
    "mpiImplementation": OPEN_MPI,
}


def mpi_crd() -> Json:
    """The CRD that serves both versions and stores v1."""
    definition = copy.deepcopy(crd(MPI_EXEC))
    (first,) = definition["spec"]["versions"]
    state, age, *more = first["additionalPrinterColumns"]
    first["additionalPrinterColumns"] = [age, state, *more]
    properties = _properties(first)
    properties["spec"]["properties"] |= copy.deepcopy(_SSH_FIELDS)
    policy = properties["spec"]["properties"]["runPolicy"]["properties"]
    policy["managedBy"]["description"] = (
        "The controller of the job: kubeflow.org/training-operator or kubeflow.org/mpi-operator, which both mean the "
        "operator, or kueue.x-k8s.io/multikueue, with which the operator ignores the job. Immutable."
    )
    policy["ttlSecondsAfterFinished"]["description"] = (
        "The job is deleted this long after it has finished; with transport ssh only the Job of its launcher."
    )
    keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    properties["status"]["properties"]["conditions"] |= keys
    second = copy.deepcopy(first) | {"name": MPI_V2.version, "storage": False}
    second["additionalPrinterColumns"] = [age, *more]
    for name, value in _V2_DEFAULTS.items():
        _properties(second)["spec"]["properties"][name]["default"] = value
    del _properties(second)["spec"]["properties"]["runPolicy"]["properties"]["schedulingPolicy"]["properties"]["queue"][
        "x-kubernetes-validations"
    ]
    first["name"] = MPI_V1.version
    definition["spec"] |= {"versions": [first, second], "conversion": {"strategy": "None"}}
    return definition


def _properties(version: Json) -> Json:
    found: Json = version["schema"]["openAPIV3Schema"]["properties"]
    return found
