"""The cost of jobs of any shape, in instructions and bytes instead of seconds (`e2e.bench.hostile` measures time).

The cost of a plan and of its requests is bounded by the size of the job plus its replicas, never their product.
"""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from functools import partial

import pytest

from e2e.bench.shapes import SHAPES, Shape
from tests.controllers.test_work import instructions
from tests.engine.builders import encoded, replica_created
from trainop.engine.actions import Ensure, Event, Plan
from trainop.engine.plan import plan
from trainop.engine.seen import Snapshot
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured, decode_unstructured

NOW = datetime(2025, 6, 1, tzinfo=UTC)
MOST_MEMORY = 32 * 1024 * 1024
"""Bytes that a plan and the largest of its bodies take beside the job."""

SMALL, LARGE = 30, 90
FEW, MANY = 10, 30

every_shape = pytest.mark.parametrize("shape", SHAPES)


def seen(shape: Shape, size: int, replicas: int) -> Snapshot:
    return snapshot_of(shape.make(size, replicas))


def snapshot_of(job: Json) -> Snapshot:
    job["metadata"]["uid"] = "u"
    return Snapshot(decode_unstructured(json.dumps(job).encode()), (), (), NOW)


def look(snapshot: Snapshot) -> Plan:
    return plan(FRAMEWORKS[snapshot.job.raw["kind"]], snapshot)


def creations(made: Plan) -> list[Ensure]:
    return [action for action in made.actions if replica_created(action)]


def make_all(snapshot: Snapshot) -> None:
    for action in creations(look(snapshot)):
        encoded(action)


@every_shape
def test_size_and_replicas_are_added_and_not_multiplied(shape: str):
    """With more replicas, a larger template costs no more than it does with few."""
    sizes = [(size, replicas) for size in (SMALL, LARGE) for replicas in (FEW, MANY)]
    views = {each: seen(SHAPES[shape], *each) for each in sizes}
    make_all(views[LARGE, MANY])  # caches between plans are not part of the cost
    cost = {each: instructions(partial(make_all, view)) for each, view in views.items()}
    for_size, for_size_with_many = (cost[LARGE, replicas] - cost[SMALL, replicas] for replicas in (FEW, MANY))
    product = for_size_with_many - for_size
    assert product <= (LARGE - SMALL) * (MANY - FEW) / 4, cost


@every_shape
def test_no_job_takes_much_memory_beside_itself(shape: str):
    snapshot = snapshot_of(SHAPES[shape].readable_job())
    tracemalloc.start()
    try:
        made = look(snapshot)
        held, _ = tracemalloc.get_traced_memory()
        for action in creations(made)[:2]:
            encoded(action)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert held < MOST_MEMORY / 2


def texts(made: Plan) -> list[str]:
    events = [transition for transition in made.transitions if isinstance(transition, Event)]
    events += [notice.event for notice in made.notices]
    conditions: list[Json] = (made.status or {}).get("conditions", [])
    return [
        *(text for event in events for text in (event.message, event.reason)),
        *(condition[name] for condition in conditions for name in ("message", "reason")),
    ]


@every_shape
def test_every_text_is_short_and_the_status_fits_beside_the_job(shape: str):
    snapshot = snapshot_of(SHAPES[shape].readable_job())
    made = look(snapshot)
    assert max(map(len, texts(made)), default=0) <= 1024
    added = len(json.dumps(made.status)) - len(json.dumps(snapshot.job.raw.get("status"))) if made.status else 0
    assert added < 5_000


@every_shape
def test_a_job_that_was_refused_is_left_at_rest(shape: str):
    snapshot = snapshot_of(SHAPES[shape].readable_job())
    made = look(snapshot)
    if made.status_first and made.status is not None:
        after = Snapshot(Unstructured(snapshot.job.raw | {"status": made.status}), (), (), NOW)
        again = look(after)
        assert (again.actions, again.status, again.transitions) == ((), None, ())
