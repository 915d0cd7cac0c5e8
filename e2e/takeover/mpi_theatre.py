"""A cluster with the Job controller, on which operators of MPIJobs replace each other."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from e2e.cluster.controlplane import ControlPlane
from e2e.takeover.mpi_scenes import MpiStage
from e2e.takeover.observers import Write
from e2e.takeover.operators import GoMpiOperator, GoOperator, MpiOperator, install_certificates
from e2e.takeover.theatre import DEFINITIONS, NEW, OLD, RecordedCluster, crds_of
from tests.server.process import Operator
from tests.server.world import Json
from trainop.kinds.mpi.crd import mpi_crd
from trainop.kinds.mpi.transport import MPI_V1

OTHER = "other"
"""The user that training-operator is beside mpi-operator."""
RBAC = "/apis/rbac.authorization.k8s.io/v1"
CHILDREN = {
    "Service": "/api/v1/services",
    "ConfigMap": "/api/v1/configmaps",
    "Secret": "/api/v1/secrets",
    "ServiceAccount": "/api/v1/serviceaccounts",
    "Role": f"{RBAC}/roles",
    "RoleBinding": f"{RBAC}/rolebindings",
    "Job": "/apis/batch/v1/jobs",
}
LABEL = "app"
"""All children of an MPIJob have it, and no object of the cluster itself."""
LOCK_NAMESPACE = "default"

Process = TypeVar("Process", bound=Operator)


def definition_of(peer: str) -> Json:
    """The CRD of MPIJob of a Go operator."""
    (found,) = (crd for crd in crds_of(peer) if crd["spec"]["names"]["kind"] == "MPIJob")
    return found


class MpiTheatre(RecordedCluster):
    """Has no CRD at first."""

    kinds = ("MPIJob",)

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        super().__init__(plane, folder)
        for kind, path in CHILDREN.items():
            self.record(kind, path, LABEL)

    def install_mpi(self, definition: Json) -> None:
        """Applies a CRD of MPIJob; the first one also begins to record the jobs."""
        self.install([definition])
        if "MPIJob" not in self.recorders:
            version = definition["spec"]["versions"][0]["name"]
            self.record("MPIJob", f"/apis/{MPI_V1.group}/{version}/mpijobs")

    def install_ours(self) -> None:
        self.install_mpi(mpi_crd())

    def forget_stored(self, version: str) -> None:
        """Removes a version from those that the CRD lists as stored."""
        path = f"{DEFINITIONS}/mpijobs.{MPI_V1.group}"
        stored = self.api("GET", path).body["status"]["storedVersions"]
        kept = [each for each in stored if each != version]
        patch = {"status": {"storedVersions": kept}}
        assert self.api("PATCH", f"{path}/status", patch, "application/merge-patch+json").status == 200

    # operators

    def mpi_operator(self, *flags: str) -> GoMpiOperator:
        """A process of mpi-operator, not started. Only one can run on a machine."""
        return self._add(
            GoMpiOperator(self.log_of(OLD), self.config(OLD), f"--lock-namespace={LOCK_NAMESPACE}", *flags)
        )

    def training_operator(self, *flags: str, user: str = OLD) -> GoOperator:
        """A process of training-operator for MPIJobs, not started."""
        folder = install_certificates(self.plane, self.folder / "certificates")
        operator = GoOperator(
            self.log_of(user), "training-operator", self.config(user), folder, "--enable-scheme=MPIJob", *flags
        )
        return self._add(operator)

    def new_mpi_operator(self, *flags: str) -> MpiOperator:
        """A process of `trainop mpi-operator`, not started. Only one can run on a machine."""
        return self._add(MpiOperator(self.log_of(NEW), self.config(NEW), f"--lock-namespace={LOCK_NAMESPACE}", *flags))

    def new_operator(self, *flags: str) -> Operator:
        """A process of `trainop operator` for MPIJobs, not started."""
        config = f"--kubeconfig={self.config(NEW)}"
        return self._add(Operator(self.log_of(NEW), config, "--enable-scheme=MPIJob", *flags))

    def _add(self, operator: Process) -> Process:
        self.operators.append(operator)
        return operator

    # objects

    def stage(self, namespace: str, transport: str) -> MpiStage:
        return MpiStage(self.api, namespace, transport)

    def objects(self) -> dict[str, Json]:
        """`Kind namespace/name` -> everything that exists."""
        return {
            f"{kind} {name}": each
            for kind, recorder in self.recorders.items()
            for name, each in recorder.sync().items()
        }

    def writes_of_ours(self, since: int) -> list[Write]:
        """The writes of our operator, events included, but for those about its lease."""
        return [
            each
            for each in self.writes(NEW, since, events=True)
            if not (each.resource == "events" and each.name.startswith(f"{LOCK_NAMESPACE}/"))
        ]

    def wait_settled(self, operator: Operator, user: str) -> None:
        """Waits until the operator has reconciled every job and writes nothing any more."""
        self.wait_reconciled(operator, user, len(self.recorders["MPIJob"].sync()))
