"""The schema of a pod template: common fields are described for `kubectl explain`, all others are kept unvalidated.

The API server validates templates when pods are created. Upstream's CRDs contain the schema of PodTemplateSpec, 400 to
900 KB per kind, which is too large for the annotation of plain `kubectl apply`.
"""

from __future__ import annotations

from trainop.engine.schema.openapi import (
    anything,
    fields,
    flag,
    int32,
    int64,
    items,
    open_fields,
    quantities,
    text,
    texts,
    words,
)
from trainop.runtime import Json


def _environment() -> Json:
    value = {
        "name": text("The variable's name."),
        "value": text("Its value. $(NAME) is replaced by the value of an earlier variable."),
        "valueFrom": anything("The source of the value: a field of the pod, a ConfigMap or a Secret."),
    }
    return items(
        "Environment variables. The operator appends its own.",
        open_fields("One variable.", value, required=["name"]),
    )


def _container(description: str) -> Json:
    port = {
        "containerPort": int32("The port inside the container."),
        "name": text("A name that services may use for the port."),
        "protocol": text("TCP, UDP or SCTP."),
    }
    mount = {
        "name": text("The name of a volume of the pod."),
        "mountPath": text("The path in the container."),
        "readOnly": flag("Whether the mount is read-only."),
        "subPath": text("The path in the volume to mount."),
    }
    resources = {
        "limits": quantities("Maximum amounts."),
        "requests": quantities("Amounts reserved by the scheduler."),
    }
    return open_fields(
        description,
        {
            "name": text("Unique within the pod."),
            "image": text("The image to run."),
            "imagePullPolicy": text("Always, IfNotPresent or Never."),
            "command": words("The entry point; that of the image if not given."),
            "args": words("Arguments of the entry point; those of the image if not given."),
            "workingDir": text("The working directory."),
            "env": _environment(),
            "envFrom": items("ConfigMaps and Secrets whose entries become variables.", anything("One source.")),
            "ports": items("Ports that the container opens.", open_fields("One port.", port)),
            "resources": open_fields("CPU, memory and devices.", resources),
            "volumeMounts": items("Volumes to mount.", open_fields("One mount.", mount)),
            "securityContext": anything("User, capabilities and other rights."),
        },
        required=["name"],
    )


def _pod_spec() -> Json:
    name = open_fields("One name.", {"name": text("The Secret's name.")})
    volume = open_fields("One volume.", {"name": text("Unique within the pod.")}, required=["name"])
    return open_fields(
        "The spec of the pods. Every field of a pod spec is accepted, described here or not.",
        {
            "containers": items(
                "The containers. The one named after the framework runs the training.",
                _container("One container."),
                keys=["name"],
            ),
            "initContainers": items(
                "Containers that run one after the other before `containers` start.",
                _container("One container."),
                keys=["name"],
            ),
            "volumes": items("Volumes that containers may mount.", volume, keys=["name"]),
            "restartPolicy": text("Overwritten by the restartPolicy of the replica type."),
            "serviceAccountName": text("The service account that the pods run as."),
            "nodeSelector": texts("Labels that a node must have."),
            "affinity": anything("Affinity to nodes and other pods."),
            "tolerations": items("Tolerated taints of nodes.", anything("One toleration.")),
            "topologySpreadConstraints": items("How pods are spread.", anything("One constraint.")),
            "schedulerName": text("The scheduler that places the pods."),
            "priorityClassName": text("The priority class of the pods."),
            "imagePullSecrets": items("Secrets to pull images with.", name),
            "terminationGracePeriodSeconds": int64("The time in seconds that a pod may take to stop."),
            "hostNetwork": flag("Whether the pods use the network of the node."),
            "securityContext": anything("User, groups and other rights of all containers."),
        },
        required=["containers"],
    )


def pod_template() -> Json:
    """The schema of `template`. As upstream, only the listed metadata fields are kept."""
    metadata = {
        "annotations": texts("Annotations of the pods."),
        "finalizers": words("Finalizers of the pods."),
        "labels": texts("Labels of the pods; the operator's labels take precedence."),
        "name": text("Not used: pods are named after the job, the replica type and the index."),
        "namespace": text("Not used: pods live in the job's namespace."),
    }
    return open_fields(
        "The pods of this type.",
        {"metadata": fields("Labels and annotations of the pods.", metadata), "spec": _pod_spec()},
    )
