"""The headless service of each pod of a DIJob (DI-orchestrator v0.2.2 `utils/util.go`, `BuildService`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainop.kinds.dijob.names import (
    DDP_MASTER,
    DDP_TYPE,
    LABELS,
    MAIN_PORT,
    MASTER_PORT,
    MASTER_PORT_NAME,
    REPLICA_TYPE,
    Role,
)
from trainop.kinds.dijob.pods import gpu_ports
from trainop.runtime import SERVICES, Json


def service_ports(labels: Mapping[str, str], port: int, gpus: int) -> list[Json]:
    """The ports of the service of a pod with these labels, main port and number of GPUs."""
    ports = [(MAIN_PORT, port)]
    if labels.get(REPLICA_TYPE) == Role.DDP_LEARNER.value:
        ports += gpu_ports(port, gpus)
        if labels.get(DDP_TYPE) == DDP_MASTER:
            ports.append((MASTER_PORT_NAME, MASTER_PORT))
    return [{"name": name, "port": number} for name, number in ports]


def build_service(
    namespace: str, name: str, labels: Mapping[str, str], owners: Sequence[Json], ports: Sequence[Json]
) -> Json:
    """The headless service of a pod, with its name. It selects by our labels only: those of the template may be changed
    on the pod."""
    selector = {label: labels[label] for label in LABELS if label in labels}
    metadata = {"name": name, "namespace": namespace, "labels": dict(selector), "ownerReferences": list(owners)}
    spec = {"type": "ClusterIP", "clusterIP": "None", "selector": selector, "ports": list(ports)}
    return {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "metadata": metadata, "spec": spec}
