"""The OpenAPI schema of `spec.elasticPolicy`."""

from __future__ import annotations

from trainop.engine.schema.openapi import anything, fields, flag, int32, items, text
from trainop.runtime import Json

_COUNTS: Json = {
    "minReplicas": int32("The minimum number of workers with which the job can continue."),
    "maxReplicas": int32("The maximum number of workers."),
    "maxRestarts": int32("The maximum number of restarts of the workers before the job fails."),
    "metrics": items(
        "Metrics that scale the number of workers, as in an autoscaling/v2 HorizontalPodAutoscaler.",
        anything("One metric."),
    ),
}


def elastic_policy(**more: Json) -> Json:
    """The schema for a kind with these fields in addition to the common ones."""
    return fields("Settings for a changing number of workers.", {**_COUNTS, **more})


TORCH_ELASTIC_POLICY = elastic_policy(
    rdzvBackend=text("The rendezvous backend: c10d, etcd or etcd-v2. c10d if not given."),
    rdzvHost=text("The host of the rendezvous; worker 0 if not given."),
    rdzvPort=int32("The port of the rendezvous; that of worker 0 if not given."),
    rdzvId=text("Identifies this job at a rendezvous host that several jobs use."),
    rdzvConf=items(
        "Settings of the rendezvous.",
        fields("One setting.", {"key": text("Its name."), "value": text("Its value.")}),
    ),
    standalone=flag("Whether each pod runs a local rendezvous for itself only."),
    nProcPerNode=int32("Deprecated: use spec.nprocPerNode."),
)
