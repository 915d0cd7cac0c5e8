"""DIJob: the annotation checkpoint-grace (`docs/survive.md`). The operator does not restart DIJobs."""

from __future__ import annotations

import json

import pytest

from tests.engine.builders import pod_deleted
from tests.kinds.dijob_world import DiWorld, running, template
from trainop.engine.actions import Remove
from trainop.kinds.dijob.kind import DIJOB
from trainop.kinds.dijob.names import Role
from trainop.kinds.dijob.pods import PodOptions, build_pod, read_job
from trainop.runtime.objects.metadata import Json

GRACE = "trainop.kubeflow.org/checkpoint-grace"
ON_DISRUPTION = "trainop.kubeflow.org/on-disruption"


def annotated(annotations: Json) -> DiWorld:
    world = running()
    world.raw["metadata"]["annotations"] = annotations
    return world


@pytest.mark.parametrize(("given", "own", "expected"), [({GRACE: "5m"}, None, 300), ({GRACE: "5m"}, 600, 600)])
@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.COLLECTOR])
def test_pods_of_the_operator_and_of_di_server_have_the_grace_period(
    role: Role, given: Json, own: int | None, expected: int
):
    job = annotated(given).raw
    pod = build_pod(
        read_job(job), role, template(**({"terminationGracePeriodSeconds": own} if own else {})), PodOptions("s")
    )
    assert pod["spec"]["terminationGracePeriodSeconds"] == expected


@pytest.mark.parametrize("given", [None, 1, [], {GRACE: 5}, {GRACE: "x"}, {}])
def test_without_a_valid_annotation_the_grace_period_is_that_of_the_template(given: object):
    job: Json = json.loads(json.dumps(running().raw))
    job["metadata"]["annotations"] = given
    pod = build_pod(read_job(job), Role.COORDINATOR, template(), PodOptions("s"))
    assert "terminationGracePeriodSeconds" not in pod["spec"]


@pytest.mark.parametrize(
    ("annotations", "phase", "force"),
    [
        ({GRACE: "5m"}, "Failed", False),
        ({GRACE: "5m"}, "Succeeded", True),  # nothing is left to save, and upstream gives no time
        ({}, "Failed", True),
    ],
)
def test_the_replicas_of_a_job_that_has_failed_may_save(annotations: Json, phase: str, force: bool):
    world = running()
    world.add(Role.COLLECTOR, "abcde")
    world.raw["metadata"]["annotations"] = annotations
    world.set_pod("a-coordinator", phase)
    made = DIJOB.decide(world.snapshot())
    removals = [action for action in made.actions if isinstance(action, Remove) and pod_deleted(action)]
    assert [(removal.name, removal.force) for removal in removals] == [("a-collector-abcde", force)]
    assert [removal.grace for removal in removals] == [300 if annotations and not force else None]


def test_a_disruption_restarts_nothing_and_a_warning_says_so():
    world = annotated({ON_DISRUPTION: "checkpoint-all"})
    (notice,) = DIJOB.decide(world.snapshot()).notices
    assert notice.event.type == "Warning"
    ignored = f'metadata.annotations[{ON_DISRUPTION}]: "checkpoint-all" is ignored'
    assert notice.event.message == f"{ignored}: the operator does not restart jobs of this kind"
