"""The contract between the shell and a kind."""

from __future__ import annotations

from tests.engine.builders import NOW, make_job, see
from trainop.engine import plan as engine
from trainop.engine.actions import Plan
from trainop.engine.admission import Judgement, judge
from trainop.engine.failures import seconds_to_due
from trainop.engine.kind import Kind, kind_of
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Unstructured


def test_a_framework_makes_a_kind():
    kind, seen = kind_of(PYTORCH), see(make_job(run={"activeDeadlineSeconds": 60}))
    assert (kind.resource, kind.name, kind.controller) == (PYTORCH.resource, "pytorch", "pytorchjob-controller")
    assert kind.companion_kinds == PYTORCH.companion_kinds
    assert kind.plan(seen) == engine.plan(PYTORCH, seen)
    assert kind.reject(seen, "no") == engine.reject(PYTORCH, seen, "no")
    wrong = Unstructured(make_job(run={"backoffLimit": -1}))
    assert kind.judge(wrong, None) == judge(PYTORCH, wrong) != Judgement()
    assert kind.judge(wrong, wrong).errors == ()
    assert kind.due(seen.job, NOW) == seconds_to_due(seen.job, NOW)


def test_a_kind_needs_neither_rules_nor_deadlines():
    kind = Kind(
        resource=PYTORCH.resource,
        name="x",
        controller="x-controller",
        plan=lambda _seen: Plan(),
        reject=lambda _seen, _message: Plan(),
    )
    job = Unstructured(make_job(run={"activeDeadlineSeconds": 60}))
    assert kind.judge(job, None) == Judgement()
    assert kind.due(job, NOW) is None
