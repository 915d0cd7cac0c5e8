"""Annotations that ask for what a job cannot have: admission admits it with a warning for each, whatever its kind."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.controllers.worlds import WORLDS, annotate, kind_in
from trainop.controllers.admission import MAX_WARNING_LENGTH, build_handler
from trainop.runtime.lowlevel import apply_change
from trainop.runtime.webhook.admission import AdmissionRequest, AdmissionResponse

every_kind = pytest.mark.parametrize("kind", WORLDS)

REPORTS = {"progress": "true", "stalled_after": "30m"}
STARTS = {"startup_deadline": "20m", "on_startup_deadline": "fail"}
WRONG: list[tuple[dict[str, str], str, str]] = [
    ({"progress": "yes"}, "progress", 'must be "true" or "false"'),
    ({"stalled_after": "soon"}, "stalled-after", "must be a duration from 1m to 720h, such as 30m"),
    ({"stalled_after": "59s"}, "stalled-after", "must be a duration from 1m to 720h, such as 30m"),
    ({"stalled_after": "30m", "progress": "false"}, "stalled-after", "set trainop.kubeflow.org/progress=true"),
    ({**REPORTS, "on_stall": "kill"}, "on-stall", "must be restart"),
    ({"on_stall": "restart"}, "on-stall", "without trainop.kubeflow.org/stalled-after"),
    ({"startup_deadline": "9s", "on_startup_deadline": "fail"}, "startup-deadline", "must be a duration from 10s"),
    ({"startup_deadline": "-1m", "on_startup_deadline": "fail"}, "startup-deadline", "must be a duration from 10s"),
    ({"startup_deadline": "20m", "on_startup_deadline": ""}, "on-startup-deadline", "must be suspend or fail"),
    ({"on_startup_deadline": "fail"}, "on-startup-deadline", "without trainop.kubeflow.org/startup-deadline"),
    ({"checkpoint_grace": "500ms"}, "checkpoint-grace", "must be a duration from 1s to 1h, such as 5m"),
    ({"checkpoint_grace": "9h"}, "checkpoint-grace", "counts as 1h"),
    ({"on_disruption": "checkpoint"}, "on-disruption", 'must be "checkpoint-all" or "checkpoint-and-respond"'),
    ({"avoid_bad_nodes": "always"}, "avoid-bad-nodes", "must be required or preferred"),
    ({"bad_node_for": "1h"}, "bad-node-for", "without trainop.kubeflow.org/avoid-bad-nodes"),
    ({"restart_mode": "inplace"}, "restart-mode", 'must be "in-place"'),
]
"""Annotations, the one at fault, and what the warning says about what would be right."""
RIGHT: list[dict[str, str]] = [{}, REPORTS, {"stalled_after": "30m"}, STARTS, {"checkpoint_grace": "5m"}]
"""Whether the pods report without an annotation depends on the operator, and not on the webhook."""
NO_RESTART = "does not restart jobs of this kind"
RESTARTED: list[tuple[dict[str, str], str]] = [
    ({**REPORTS, "on_stall": "restart"}, "on-stall"),
    ({"on_disruption": "checkpoint-all"}, "on-disruption"),
    ({"on_disruption": "checkpoint-and-respond"}, "on-disruption"),
    ({"avoid_bad_nodes": "required"}, "avoid-bad-nodes"),
]


def review(kind: str, raw: Any = None, **annotations: str) -> AdmissionResponse:
    world = WORLDS[kind]()
    new = annotate(world.raw, **annotations) if raw is None else raw
    kind_ = kind_in(world)
    new = new if kind_.default is None else apply_change(new, kind_.default)
    response = build_handler(kind_.admit)(AdmissionRequest("u", "CREATE", object=new))
    assert not inspect.isawaitable(response)
    return response


@every_kind
@pytest.mark.parametrize(("annotations", "name", "right"), WRONG)
def test_a_wrong_annotation_is_one_warning_with_what_is_right(
    kind: str, annotations: dict[str, str], name: str, right: str
):
    response = review(kind, **annotations)
    found = [each for each in response.warnings if f"metadata.annotations[trainop.kubeflow.org/{name}]" in each]
    assert response.allowed
    assert len(found) == 1, response.warnings
    assert right in found[0] or NO_RESTART in found[0]
    given = annotations[name.replace("-", "_")]
    assert f'"{given}"' in found[0] or "has no effect" in found[0]


@every_kind
@pytest.mark.parametrize("annotations", RIGHT)
def test_right_annotations_are_no_warning(kind: str, annotations: dict[str, str]):
    assert not [each for each in review(kind, **annotations).warnings if "annotations" in each]


@every_kind
@pytest.mark.parametrize(("annotations", "name"), RESTARTED)
def test_a_kind_that_is_not_restarted_says_so(kind: str, annotations: dict[str, str], name: str):
    found = [each for each in review(kind, **annotations).warnings if f"/{name}]" in each]
    assert [NO_RESTART in each for each in found] == [True] * (kind == "DIJob")


@every_kind
def test_a_kind_that_cannot_be_suspended_names_the_way_out(kind: str):
    found = [each for each in review(kind, startup_deadline="20m").warnings if "/startup-deadline]" in each]
    assert ["set trainop.kubeflow.org/on-startup-deadline=fail" in each for each in found] == [True] * (kind == "DIJob")


@every_kind
def test_all_at_once_are_all_named_and_can_be_sent(kind: str):
    """The API server drops a warning that is longer than 256 bytes together with all later ones, and one with a control
    character."""
    names = ("progress", "stalled_after", "on_stall", "startup_deadline", "on_startup_deadline", "checkpoint_grace")
    hostile = "\x1b[31m\n" + "\u00e4\x7f" * 1000
    response = review(kind, **dict.fromkeys((*names, "on_disruption"), hostile))
    assert response.allowed
    told = [each for each in response.warnings if "annotations[" in each]
    assert len(told) == len(names) + 1
    for each in told:
        assert len(each.encode()) <= MAX_WARNING_LENGTH
        assert each.isprintable()
        assert "must be" in each, each


@every_kind
def test_annotations_of_a_wrong_type_are_no_crash(kind: str):
    raw = WORLDS[kind]().raw
    raw["metadata"]["annotations"] |= {"trainop.kubeflow.org/stalled-after": 30}
    response = review(kind, raw)
    assert isinstance(response, AdmissionResponse)
