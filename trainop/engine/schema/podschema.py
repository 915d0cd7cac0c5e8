"""The schema of a pod template: common fields are described for `kubectl explain`, all others are kept unseen.

The API server checks the whole of a template when a pod is made from it. The schema of upstream's CRDs repeats all of
PodTemplateSpec, at 400 to 900 KB for each kind, which plain `kubectl apply` cannot store in its annotation.
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
from trainop.runtime.objects.metadata import Json


def _environment() -> Json:
    value = {
        "name": text("The variable's name."),
        "value": text("Its value. $(NAME) stands for the value of a variable that was set before."),
        "valueFrom": anything("Where the value comes from: a field of the pod, a ConfigMap, a Secret."),
    }
    return items(
        "Variables of the environment. Those that the operator sets are put behind them.",
        open_fields("One variable.", value, required=["name"]),
    )


def _container(description: str) -> Json:
    port = {
        "containerPort": int32("The port inside the container."),
        "name": text("A name that services may use for the port."),
        "protocol": text("TCP, UDP or SCTP."),
    }
    mount = {
        "name": text("Which of the pod's volumes."),
        "mountPath": text("Where it stands in the container."),
        "readOnly": flag("Whether writing is forbidden."),
        "subPath": text("The part of the volume to mount."),
    }
    resources = {
        "limits": quantities("At most these may be used."),
        "requests": quantities("At least these are set aside."),
    }
    return open_fields(
        description,
        {
            "name": text("Unique within the pod."),
            "image": text("The image to run."),
            "imagePullPolicy": text("Always, IfNotPresent or Never."),
            "command": words("The program and its first arguments; without them, the image's own."),
            "args": words("Arguments of the program; without them, the image's own."),
            "workingDir": text("The directory that the program starts in."),
            "env": _environment(),
            "envFrom": items("ConfigMaps and Secrets whose every entry becomes a variable.", anything("One source.")),
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
        "What the pods are. Any field of a pod's spec may stand here, described or not.",
        {
            "containers": items(
                "The containers. The operator looks after the one that is named after the framework.",
                _container("One container."),
                keys=["name"],
            ),
            "initContainers": items(
                "Containers that run one after the other before all others.",
                _container("One container."),
                keys=["name"],
            ),
            "volumes": items("Volumes that containers may mount.", volume, keys=["name"]),
            "restartPolicy": text("Overruled by the restartPolicy of the replica type."),
            "serviceAccountName": text("The service account that the pods run as."),
            "nodeSelector": texts("Labels that a node must have."),
            "affinity": anything("Which nodes and neighbours are wanted or avoided."),
            "tolerations": items("Taints of nodes that do not matter.", anything("One toleration.")),
            "topologySpreadConstraints": items("How pods are spread.", anything("One constraint.")),
            "schedulerName": text("The scheduler that places the pods."),
            "priorityClassName": text("How important the pods are against others."),
            "imagePullSecrets": items("Secrets to pull images with.", name),
            "terminationGracePeriodSeconds": int64("How long a pod may take to stop."),
            "hostNetwork": flag("Whether the pods use the node's network."),
            "securityContext": anything("User, groups and other rights of all containers."),
        },
        required=["containers"],
    )


def pod_template() -> Json:
    """The schema of `template`: of its metadata only what pods can take over is kept, as upstream."""
    metadata = {
        "annotations": texts("Annotations of the pods."),
        "finalizers": words("Finalizers of the pods."),
        "labels": texts("Labels of the pods; those of the operator win."),
        "name": text("Not used: pods are named after the job, the replica type and the index."),
        "namespace": text("Not used: pods live in the job's namespace."),
    }
    return open_fields(
        "The pods of this type.",
        {"metadata": fields("Labels and annotations of the pods.", metadata), "spec": _pod_spec()},
    )
