"""The CustomResourceDefinition of a kind, generated from its `Framework` (training-operator `manifests/base/crds/`).

As upstream, the schema has no enums and no minima, because the API server would enforce them on every update of a
stored object. `admission` validates values instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainop.engine.framework import Framework
from trainop.engine.phases import ACCOUNT
from trainop.engine.progress import TRAINER_STATUS
from trainop.engine.root_cause import LAST_FAILURE
from trainop.engine.schema.failure import last_failure
from trainop.engine.schema.openapi import (
    anything,
    fields,
    flag,
    int32,
    int64,
    items,
    mapping,
    moment,
    open_fields,
    quantities,
    text,
    texts,
)
from trainop.engine.schema.podschema import pod_template
from trainop.engine.schema.progress import PROGRESS_COLUMNS, account, trainer_status
from trainop.runtime import Json, Resource

_STATE: Json = {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"}
_CONDITION_TYPES = (
    "Created, Running, Restarting, Suspended, Succeeded, Failed, GangReady, RightsGranted, Waiting or TemplateValid."
)
AGE: Json = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def crd(framework: Framework) -> Json:
    """The CRD that serves and stores the version of `framework.resource`."""
    scale = {
        "specReplicasPath": f".spec.{framework.replica_specs}.Worker.replicas",
        "statusReplicasPath": ".status.replicaStatuses.Worker.active",
        "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
    }
    return definition(
        framework.resource,
        f"{framework.kind} is a distributed training job that the operator runs as pods.",
        {"spec": _spec(framework), "status": _status()},
        [_STATE, AGE, *PROGRESS_COLUMNS],
        subresources={"status": {}, **({"scale": scale} if framework.scale else {})},
    )


def definition(
    resource: Resource,
    description: str,
    properties: Json,
    columns: Sequence[Json],
    *,
    required: Sequence[str] = (),
    subresources: Json | None = None,
    names: Json | None = None,
    **policy: Json,
) -> Json:
    """The CRD that serves and stores one version of `resource`. `properties` are those that not every object has,
    `names` further names, `policy` further fields of the CRD's `spec`. Without `subresources` there is `status`."""
    about = {
        "apiVersion": text("The version of the schema that the object is written in."),
        "kind": text("The kind of the object."),
        "metadata": {"type": "object"},
    }
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": subresources or {"status": {}},
        "additionalPrinterColumns": list(columns),
        "schema": {"openAPIV3Schema": fields(description, {**about, **properties}, required=required)},
    }
    singular, listed = resource.kind.lower(), f"{resource.kind}List"
    known = {"kind": resource.kind, "listKind": listed, "plural": resource.plural, "singular": singular}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": {**known, **(names or {})},
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            **policy,
            "versions": [version],
        },
    }


def _spec(framework: Framework) -> Json:
    types = list(framework.roles)
    named = types[0] if len(types) == 1 else f"{', '.join(types[:-1])} and {types[-1]}"
    return fields(
        "The desired state of the job.",
        {
            framework.replica_specs: mapping(
                f"The pods of the job by type. Types are {named}.", _replica_spec(framework)
            ),
            "runPolicy": _run_policy(),
            **framework.spec_fields,
        },
        required=[framework.replica_specs, *framework.required_fields],
    )


def _replica_spec(framework: Framework) -> Json:
    return fields(
        "The pods of one type.",
        {
            "replicas": int32("How many; 1 if not given."),
            "restartPolicy": text(
                "What happens to a pod that fails: Always and OnFailure restart it, Never fails the job, ExitCode "
                f"restarts it if the exit code is 128 or above. {framework.restart_policy} if not given."
            ),
            "template": pod_template(),
        },
    )


def _run_policy() -> Json:
    return fields(
        "How the job runs, ends and is cleaned up.",
        {
            "activeDeadlineSeconds": int64("The job fails when it has been active for this long."),
            "backoffLimit": int32("The job fails when its pods have failed more often than this."),
            "cleanPodPolicy": text(
                "Which pods are deleted when the job has finished: None, Running (and pending ones) or All. "
                "None if not given."
            ),
            "managedBy": text(
                "The controller of the job: kubeflow.org/training-operator, or kueue.x-k8s.io/multikueue, with which "
                "the operator ignores the job. Immutable.",
                **_immutable("field is immutable"),  # upstream `pkg/webhooks` says so too
            ),
            "schedulingPolicy": _scheduling_policy(),
            "suspend": flag(
                "While true, the job has no pods. Its deadline starts again when it is resumed.", default=False
            ),
            "ttlSecondsAfterFinished": int32("The job is deleted this long after it has finished; never if not given."),
        },
    )


def _immutable(message: str) -> Json:
    """A rule that refuses another value. As with all transition rules, the field may be added and removed."""
    return {"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": message}]}


def _scheduling_policy() -> Json:
    immutable = _immutable("spec.runPolicy.schedulingPolicy.queue is immutable")
    return fields(
        "Gang scheduling of the job's pods, if the operator runs with a gang scheduler.",
        {
            "minAvailable": int32("The number of pods that must be schedulable together; all if not given."),
            "minResources": quantities(
                "The resources that must be free before any pod is scheduled; computed if not given."
            ),
            "priorityClass": text("The priority class of the pod group."),
            "queue": text("The queue of the scheduler.", **immutable),
            "scheduleTimeoutSeconds": int32("The time in seconds that the scheduler may wait for the pod group."),
        },
    )


COUNTERS = {
    "active": int32("Running pods."),
    "succeeded": int32("Pods that have succeeded."),
    "failed": int32("Pods that have failed."),
}
"""The counters of pods of one role."""


def condition(description: str, types: str) -> Json:
    """One condition in the status of a job."""
    return fields(
        description,
        {
            "type": text(types),
            "status": text("True, False or Unknown."),
            "reason": text("The reason of the last transition, in CamelCase."),
            "message": text("The reason as a sentence."),
            "lastUpdateTime": moment("When the condition was last written."),
            "lastTransitionTime": moment("When its status last changed."),
        },
        required=["type", "status"],
    )


def _status() -> Json:
    conditions = condition("One condition of the job.", _CONDITION_TYPES)
    replica_status = fields(
        "The number of pods of one type by state.",
        {
            **COUNTERS,
            "selector": text("Selects the pods of this type."),
            "labelSelector": open_fields(
                "Deprecated and not written; use selector.",
                {
                    "matchLabels": texts("Required labels."),
                    "matchExpressions": items("Conditions on labels.", anything("One condition.")),
                },
            ),
        },
    )
    return fields(
        "The observed state of the job, written by the operator.",
        {
            "conditions": items("The state of the job; the latest condition is the last entry.", conditions),
            "replicaStatuses": mapping("Pods by type.", replica_status),
            "startTime": moment("When the job started, or resumed last."),
            "completionTime": moment("When the job finished."),
            "lastReconcileTime": moment("When the operator last reconciled the job while it waited for scheduling."),
            LAST_FAILURE: last_failure(),
            TRAINER_STATUS: trainer_status(),
            ACCOUNT: account(),
        },
    )
