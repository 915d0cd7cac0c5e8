"""DIJob (DI-orchestrator v1alpha1) as a `Kind`."""

from __future__ import annotations

from trainop.engine.children import ChildEvents, ChildSelection
from trainop.engine.kind import Kind
from trainop.kinds.dijob.admission import default_dijob, judge_dijob
from trainop.kinds.dijob.names import (
    AGGREGATOR_CONFIGS,
    CONTROLLER,
    CONTROLLER_NAME,
    DIJOBS,
    GROUP,
    GROUP_NAME,
    JOB_NAME,
    OUR_PODS,
)
from trainop.kinds.dijob.plan import give_up_dijob, plan_dijob, reject_dijob
from trainop.kinds.dijob.seen import decode_di_pod, decode_di_service

CHILDREN = ChildSelection(
    watch=OUR_PODS,
    controller_label=CONTROLLER_NAME,
    job_label=JOB_NAME,
    constant_labels={GROUP_NAME: GROUP},
    decode_pod=decode_di_pod,
    decode_service=decode_di_service,
)

EVENTS = ChildEvents(
    created=("SuccessfulCreate", "Create {noun}: {name}"),
    not_created=("FailedCreate", "Failed to create {noun}: {name} error: {error}"),
    deleted=("SuccessfulDelete", "Delete {noun}: {name}"),
    not_deleted=("FailedDelete", "Failed to delete {noun}: {name} error: {error}"),
)
"""As DI-orchestrator `controllers/pod.go`."""

DIJOB = Kind(
    resource=DIJOBS,
    name="dijob",
    controller=CONTROLLER,
    component="di-orchestrator",
    children=CHILDREN,
    child_events=EVENTS,
    plan=plan_dijob,
    reject=reject_dijob,
    give_up=give_up_dijob,
    suspends=False,
    judge=judge_dijob,
    default=default_dijob,
    template_resources=(AGGREGATOR_CONFIGS,),
)
