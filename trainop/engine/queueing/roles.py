"""The queueing of kinds that are a `Framework`: a pod set for each replica type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from trainop.engine.framework import REPLICA_TYPE, Framework
from trainop.engine.job import Job, Role
from trainop.engine.kube_gang import elastic_minimum
from trainop.engine.leaders import WORKER
from trainop.engine.manifests import Manifests
from trainop.engine.parse import ignored, parse
from trainop.engine.queueing.placement import place_roles
from trainop.engine.queueing.pod_sets import PodSet
from trainop.engine.queueing.queue import Queueing
from trainop.engine.seen import Snapshot
from trainop.runtime import Json


def queueing_of(framework: Framework) -> Queueing:
    """How jobs of the framework are queued."""
    return Queueing(
        words=framework,
        pod_sets=partial(_pod_sets, framework),
        place=partial(place_roles, framework.replica_specs),
        leaves=lambda seen: ignored(seen.job, framework.managers),
        done=partial(_done, framework),
    )


def _pod_sets(framework: Framework, seen: Snapshot) -> Sequence[PodSet]:
    job = parse(framework, seen.job)
    if job.errors:
        return ()
    least = elastic_minimum(job)
    others = sum(role.replicas for role in job.roles if role.type != WORKER)
    minimum = {WORKER: least - others} if least is not None else {}
    return [
        PodSet(
            role.label,
            role.replicas,
            role.template,
            partial(_make, framework, job, role, seen),
            minimum.get(role.type),
        )
        for role in job.roles
    ]


def _make(framework: Framework, job: Job, role: Role, seen: Snapshot) -> Json:
    made: Json = msgspec.json.decode(Manifests(framework, job, seen.options).pod(role, 0))
    return made


def _done(framework: Framework, seen: Snapshot) -> Mapping[str, int]:
    """The pods that have succeeded. Where all pods restart together, or an elastic policy replaces them, none of them
    is done before the job is."""
    job = parse(framework, seen.job)
    if job.errors or job.extensions.restart_scope == "job" or elastic_minimum(job) is not None:
        return {}
    succeeded = (pod for pod in seen.pods if pod.status.phase == "Succeeded" and not pod.metadata.terminating)
    mine = (pod for pod in succeeded if pod.metadata.controlled_by(job.metadata.uid))
    return Counter(pod.metadata.labels.get(REPLICA_TYPE, "") for pod in mine)
