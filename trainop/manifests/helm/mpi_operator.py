"""The chart of mpi-operator, in `manifests/chart-mpi-operator`: the objects of the overlay of that name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from trainop.kinds.mpi.transport import MPI_V1
from trainop.manifests import workload
from trainop.manifests.components import objects as component_objects
from trainop.manifests.helm import monitoring, pod, schemas
from trainop.manifests.helm.chart import Chart, when
from trainop.manifests.helm.chart import placed as place
from trainop.manifests.helm.notes import notes
from trainop.manifests.helm.template import Node
from trainop.manifests.helm.values import Section, Value
from trainop.manifests.mpi_operator import NAME, deployment
from trainop.manifests.names import IMAGE
from trainop.manifests.rbac import mpi_operator_exec_roles, mpi_operator_roles, standard_user_roles
from trainop.programs.mpi_operator import LEASE
from trainop.programs.schemes import crds

FOLDER = "chart-mpi-operator"
_placed = partial(place, NAME)


def mpi_operator() -> Chart:
    return Chart(
        folder=FOLDER,
        name=NAME,
        description="An operator for MPIJobs alone, in place of mpi-operator",
        values=_values(),
        templates=_templates(),
        refusals={},
        notes=_NOTES,
        crds=[each for each in crds() if each["spec"]["names"]["kind"] == MPI_V1.kind],
    )


def _values() -> list[Value | Section]:
    own = deployment()
    return [
        *pod.image_values(IMAGE),
        Value("namespaceOverride", "", schemas.STRING, "Instead of the namespace of the release."),
        pod.replicas_value(),
        pod.flags_value(),
        *pod.own_values(own),
        *pod.common_values([own]),
        *pod.component_values(_SWITCHES),
        *monitoring.values(NAME, "podMonitor", component_objects()["mpi-operator-monitor"]),
        *monitoring.values(NAME, "prometheusRule", component_objects()["prometheus-rule"]),
    ]


_SWITCHES = {
    "exec": "The rights for MPIJobs with transport exec (kubeflow.org/v1).",
    "userRoles": "ClusterRoles for jobs, aggregated into the roles admin, edit and view of the cluster.",
    "podMonitor": "For the Prometheus operator.",
    "prometheusRule": "Alerts, for the Prometheus operator.",
}


def _templates() -> dict[str, Sequence[Node]]:
    account = {**workload.service_account(), "metadata": {"name": NAME}}
    return {
        "serviceaccount": _placed([pod.annotated(account)]),
        "rbac": _placed(mpi_operator_roles(NAME)),
        "deployment": _placed([pod.replicated(pod.flagged(pod.configured(deployment())))]),
        "exec": [when("$.Values.components.exec", _placed(mpi_operator_exec_roles(NAME)))],
        "pod-monitor": monitoring.selected(NAME, "podMonitor", component_objects()["mpi-operator-monitor"]),
        "prometheus-rule": monitoring.selected(NAME, "prometheusRule", component_objects()["prometheus-rule"]),
        "user-roles": [when("$.Values.components.userRoles", _placed(standard_user_roles()))],
    }


_NOTES = notes(
    """\
mpi-operator {{ $.Chart.AppVersion }} is installed in the namespace {{ $namespace }}.
It works on MPIJobs in all namespaces.

""",
    [NAME],
    "mpijobs",
    """\
{{- if not $.Values.components.exec }}

MPIJobs of kubeflow.org/v1 run their launcher by kubectl exec, which needs components.exec.
Without it such a job waits, with an event that says so.
{{- end }}
""",
    {f"lease/{LEASE}": "true"},
)
