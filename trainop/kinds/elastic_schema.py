"""The schema of `spec.elasticPolicy`."""

from __future__ import annotations

from trainop.engine.schema.openapi import anything, fields, flag, int32, items, text
from trainop.runtime.objects.metadata import Json

_COUNTS: Json = {
    "minReplicas": int32("The least workers that the job can go on with."),
    "maxReplicas": int32("The most workers that the job can use."),
    "maxRestarts": int32("How often workers may be restarted before the job fails."),
    "metrics": items(
        "What the number of workers is made to follow, as in an autoscaling/v2 HorizontalPodAutoscaler.",
        anything("One metric."),
    ),
}


def elastic_policy(**more: Json) -> Json:
    """The policy of a kind that has these fields beyond the common ones."""
    return fields("How the job goes on with fewer or more workers.", {**_COUNTS, **more})


TORCH_ELASTIC_POLICY = elastic_policy(
    rdzvBackend=text("Where workers find each other: c10d, etcd or etcd-v2. c10d if not given."),
    rdzvHost=text("The host of the rendezvous; worker 0 if not given."),
    rdzvPort=int32("The port of the rendezvous; that of worker 0 if not given."),
    rdzvId=text("Tells this job's rendezvous from others at the same place."),
    rdzvConf=items(
        "Settings of the rendezvous.",
        fields("One setting.", {"key": text("Its name."), "value": text("Its value.")}),
    ),
    standalone=flag("Whether each node runs a rendezvous of its own."),
    nProcPerNode=int32("Deprecated: use spec.nprocPerNode."),
)
