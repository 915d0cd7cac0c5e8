"""Planted bugs of adoption and release, and of refusals by the API server or by validation."""

from __future__ import annotations

from typing import Any

from tests.simulation.bugs import own_names_free
from tests.simulation.planting import bug, patch
from trainop.controllers.apply import Applier
from trainop.controllers.children import ChildWriter
from trainop.controllers.outcome import Refusals
from trainop.engine import children
from trainop.engine import plan as engine
from trainop.engine.actions import Release
from trainop.engine.children import read_place
from trainop.engine.steps.builder import ReplicasBuilder

# Ownership of pods ---------------------------------------------------------------------------------------------------


@bug("An orphan with the labels of a slot is adopted under any name.")
def orphan_of_another_name_adopted():
    def by_age(job: Any, _resource: Any, orphan: Any) -> bool:
        return (orphan.creation_timestamp or "") >= (job.metadata.creation_timestamp or "")

    return patch(children, "_may_adopt", by_age)


@bug("An orphan with the name of a slot is adopted although it is older than the job.")
def older_orphan_adopted():
    def by_name(job: Any, _resource: Any, orphan: Any) -> bool:
        return bool(orphan.name == "-".join((job.name, *map(str, read_place(orphan.labels)))))

    return patch(children, "_may_adopt", by_name)


@bug("A pod whose owner reference was removed is not adopted again.")
def orphans_left():
    return patch(children, "_may_adopt", lambda *_: False)


@bug("A pod whose labels no longer match is not released.")
def relabelled_pod_kept():
    set_owner = ChildWriter._set_owner

    async def keep(self: ChildWriter, job: Any, action: Any, *given: Any) -> None:
        if not isinstance(action, Release):
            await set_owner(self, job, action, *given)

    return patch(ChildWriter, "_set_owner", keep)


@bug("A job that has had pods fails when the API server refuses one of them.")
def refusal_fails_a_begun_job():
    carry_out = Applier.carry_out

    async def as_at_first(self: Applier, job: Any, actions: Any, **_: Any) -> Any:
        return await carry_out(self, job, actions)

    return patch(Applier, "carry_out", as_at_first)


@bug("A job whose first pods the API server refuses keeps retrying.")
def refusal_fails_nothing():
    carry_out = Applier.carry_out

    async def as_begun(self: Applier, job: Any, actions: Any, **_: Any) -> Any:
        return await carry_out(self, job, actions, begun=True)

    return patch(Applier, "carry_out", as_begun)


@bug("A pod that the API server has refused once is never retried.")
def refused_for_ever():
    allow = Refusals.allow

    def without(self: Refusals, job: Any, actions: Any) -> Any:
        state = self._states.find(job.uid)
        if state is not None and state.refused is not None:
            state.refused.until = float("inf")
        return allow(self, job, actions)[0], None

    return patch(Refusals, "allow", without)


@bug("A pod counts as soon as it may be adopted, even if the API server refuses the adoption.")
def orphan_counted_before_adoption():
    sort = children._claim

    def counted(*args: Any) -> Any:
        found = sort(*args)
        found.owned += found.orphans.values()
        return found

    return patch(children, "_claim", counted)


@bug(
    "A pod is recreated in the same pass that deletes the holder of its name, a pod relabelled as another replica.",
    rare=True,
)
def name_of_a_misplaced_pod_taken():
    return own_names_free()


@bug("A job that has begun fails when an edit makes it one that validation refuses.")
def edit_fails_a_begun_job():
    proceed = engine._proceed

    def refuse(builder: ReplicasBuilder) -> Any:
        return engine._refuse(builder, "of an edit") if builder.job.errors else proceed(builder)

    return patch(engine, "_proceed", refuse)
