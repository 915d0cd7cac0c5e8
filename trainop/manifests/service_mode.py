"""Which Services replicas get (`--service-mode`), and what a new installation should choose."""

from __future__ import annotations

from trainop.manifests.names import NAME
from trainop.manifests.overlays import Component, Needed, json_patch

FLAG = "--service-mode"
COMPONENT = "service-mode-job"
ADVICE = (
    "New installations should take the mode job, one Service per job: a job of 8 pods then costs the API server a "
    "quarter less CPU, etcd a third, and kube-controller-manager two thirds. The mode replica makes one Service per "
    "replica, as training-operator does, for programs that look those up; leader makes one for the first replica."
)
"""The figures of docs/performance.md#service-modes."""


def service_mode_job() -> Component:
    flag = [{"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": f"{FLAG}=job"}]
    return Component(
        needs=[Needed("apps/v1", "Deployment", NAME)],
        patches=[json_patch({"kind": "Deployment", "name": NAME}, flag)],
    )
