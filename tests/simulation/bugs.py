"""Planted bugs of the runtime and of the controllers, including the order of writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from tests.simulation.planting import bug, patch
from trainop.controllers import live_job
from trainop.controllers.children import ChildWriter
from trainop.controllers.job_state import FirstStatus
from trainop.controllers.live_job import OwnerCheck, OwnWrites
from trainop.controllers.outcome import Outcome, Passes
from trainop.controllers.reconciler import JobReconciler, _is_progress_only, _is_unsettled
from trainop.controllers.statuses import FirstStatuses
from trainop.engine import assess
from trainop.engine import plan as engine
from trainop.engine.children import RoleSlots
from trainop.engine.restart_history import RestartHistory
from trainop.engine.status import Status
from trainop.engine.steps import replicas
from trainop.engine.steps.builder import ReplicasBuilder
from trainop.runtime.cache import watcher
from trainop.runtime.cache.reflector import Reflector
from trainop.runtime.cache.store import Change, Store
from trainop.runtime.client.client import Client
from trainop.runtime.clock import read_time
from trainop.runtime.controller.controller import Controller
from trainop.runtime.controller.expectations import Expectations
from trainop.runtime.controller.reconcile import DONE, Result
from trainop.runtime.controller.workqueue import WorkQueue
from trainop.runtime.errors import ConflictError, NotFoundError
from trainop.runtime.manager.leader import LeaderElector
from trainop.runtime.objects.metadata import Unstructured

# Expectations and own writes ------------------------------------------------------------------------------------------


@bug("A pass never waits for the cache to show what the operator has created and deleted.")
def expectations_off():
    return patch(Expectations, "satisfied", lambda *_: True)


@bug(
    "A pass begins as soon as the writes of one kind of child are observed, pods or services (upstream ORs over roles)."
)
def or_instead_of_and():
    whole = Expectations.satisfied

    def satisfied(self: Expectations, owner: str, look: Any) -> bool:
        if whole(self, owner, look):
            return True
        left = self._owners[owner]
        kinds = {place[0] for place in left.creates} | {place[0] for place in left.deletes}
        return len(kinds) == 1

    return patch(Expectations, "satisfied", satisfied)


@bug("A pass starts from a job that is older than the operator's own last write of it.")
def own_status_not_awaited():
    return patch(OwnWrites, "seconds_until_live", lambda *_: None)


@bug("The live read of a stale job returns the successor of the same name.")
def successor_taken_for_the_job():
    async def read_live(self: OwnWrites, cached: Unstructured) -> Unstructured | None:
        key = cached.metadata.key
        try:
            job = Unstructured(await self._client.get(self._resource, key.name, key.namespace))
        except NotFoundError:
            return None
        self._states.follow(key, job.metadata.uid)
        written = self._ensure(job)
        written.version, written.stale = job.metadata.resource_version, ""
        return job

    return patch(OwnWrites, "read_live", read_live)


@bug("Deleted children are recreated although the garbage collector deleted them with their job.")
def garbage_recreated():
    async def confirm(*_: Any) -> bool:
        return True

    return patch(OwnerCheck, "confirm", confirm)


@bug("An update with our own status counts as the echo of our write, whatever else has changed.")
def edit_taken_for_an_echo():
    return patch(live_job, "_without_status", lambda _: None)


# Passes that stop early -----------------------------------------------------------------------------------------------


def _only_past(step: str, whole: str) -> Any:
    """A pass that stops between the methods `whole` and `step` does not requeue the job."""
    run, take = getattr(JobReconciler, whole), getattr(JobReconciler, step)
    past: set[Any] = set()

    async def taken(self: JobReconciler, *args: Any) -> Any:
        past.add(asyncio.current_task())
        return await take(self, *args)

    async def forgetful(self: JobReconciler, *args: Any) -> Result:
        past.discard(asyncio.current_task())
        result: Result = await run(self, *args)
        return result if asyncio.current_task() in past else DONE

    changes: Any = {step: taken, whole: forgetful}
    return mock.patch.multiple(JobReconciler, **changes)


@bug("A pass that waits for the cache to show our write of the job does not requeue the job.")
def own_write_awaited_without_requeue():
    return _only_past("_reconcile_job", "reconcile")


@bug("A pass that waits for caches to show our writes of children does not requeue the job.")
def children_awaited_without_requeue():
    return _only_past("_carry_out", "_reconcile_job")


@bug("A pass that delays a status write does not requeue the job.")
def status_delayed_for_ever():
    carry_out = JobReconciler._carry_out

    async def forget(self: JobReconciler, seen: Any, plan: Any, version: str) -> Result:
        unsettled = _is_unsettled(seen)
        if _is_progress_only(plan) and self._writes.progress_delay(seen.job, unsettled=unsettled):
            return DONE
        return await carry_out(self, seen, plan, version)

    return patch(JobReconciler, "_carry_out", forget)


@bug("A pass that holds the first status of a job back does not requeue the job.")
def first_status_held_for_ever():
    return patch(FirstStatuses, "seconds_to_due", lambda *_: None)


@bug("The first status of a job is held back for four seconds.")
def first_status_late():
    def four(self: FirstStatuses, first: FirstStatus) -> float:
        return max(0.0, first.since + 4.0 - self._clock.monotonic())

    return patch(FirstStatuses, "_seconds_left", four)


@bug("A pass that has created children does not requeue the job in case they are deleted before they are observed.")
def unobserved_child_awaited_without_requeue():
    finish = Passes.finish

    def forget(self: Passes, *args: Any) -> Result:
        with patch(Expectations, "expires_in", lambda *_: None):
            return finish(self, *args)

    return patch(Passes, "finish", forget)


# Writes ---------------------------------------------------------------------------------------------------------------


@bug("DELETE carries no UID precondition, so it may delete a successor of the same name.")
def delete_without_uid():
    delete = Client.delete

    async def without(self: Client, *args: Any, uid: Any = None, **options: Any) -> None:
        await delete(self, *args, **options)

    return patch(Client, "delete", without)


@bug("The status is written without a resourceVersion, even over a newer job.")
def stale_status_write():
    write = OwnWrites._replace_status

    def unconditional(self: OwnWrites, job: Any, status: Any, _version: str) -> Any:
        return write(self, job, status, "")

    return patch(OwnWrites, "_replace_status", unconditional)


@bug("A conflict counts as success, without another reconcile.")
def conflict_swallowed():
    reconcile_job = JobReconciler._reconcile_job

    async def swallow(self: JobReconciler, job: Any) -> Result:
        try:
            return await reconcile_job(self, job)
        except ConflictError:
            return DONE

    return patch(JobReconciler, "_reconcile_job", swallow)


@bug("Errors of a batch of creates and deletes are swallowed, as if all had gone well.")
def batch_error_swallowed():
    carry_out = ChildWriter.carry_out

    async def swallow(self: ChildWriter, job: Any, action: Any, outcome: Outcome) -> None:
        await carry_out(self, job, action, outcome)
        outcome.errors.clear()

    return patch(ChildWriter, "carry_out", swallow)


# The order of things --------------------------------------------------------------------------------------------------


@bug("A finished job is cleaned up before its terminal status is written.")
def clean_up_before_terminal_status():
    finish = engine._finish

    def late(builder: ReplicasBuilder, **options: Any) -> Any:
        return replace(finish(builder, **options), status_first=False)

    return patch(engine, "_finish", late)


@bug("A restart is counted after the failed pod is deleted.")
def restart_counted_after_deletion():
    carry_out = JobReconciler._carry_out

    async def late(self: JobReconciler, seen: Any, plan: Any, version: str) -> Result:
        result = await carry_out(self, seen, replace(plan, annotations={}), version)
        if plan.annotations:
            await self._writes.annotate(seen.job, plan.annotations, version)
        return result

    return patch(JobReconciler, "_carry_out", late)


@bug("A restart is counted in each pass that sees the failed pod.")
def restart_counted_again():
    return patch(RestartHistory, "is_counted", lambda *_: False)


@bug("A pod that terminates leaves its slot vacant, although it still has the name.")
def name_of_a_dying_pod_taken():
    def vacancies(self: RoleSlots) -> Iterator[int]:
        return iter(index for index in range(self.role.replicas) if index not in self.pods)

    @contextmanager
    def plant() -> Iterator[None]:
        with patch(RoleSlots, "vacancies", vacancies), own_names_free():
            yield

    return plant()


def own_names_free() -> Any:
    """The names of the job's own children count as free."""
    free = replicas._available

    def without_own(builder: ReplicasBuilder, role: Any, kind: str, indices: Any) -> list[int]:
        claimed: Any = builder.children.pods if kind == "Pod" else builder.children.services
        owned, claimed.owned = claimed.owned, []
        try:
            return free(builder, role, kind, indices)
        finally:
            claimed.owned = owned

    return patch(replicas, "_available", without_own)


@bug("A resumed job does not wait until the pods from before have gone.")
def resumed_among_dying_pods():
    def proceed(builder: ReplicasBuilder) -> Any:
        if builder.status.is_true("Suspended"):
            engine._resume(builder)
        return engine._advance(builder)

    return patch(engine, "_proceed", proceed)


@bug("Some of the pods that restart together are recreated before all have gone.")
def restart_group_not_awaited():
    return patch(replicas, "restarting_groups", lambda *_: set())


@bug("completionTime is set in every pass over a finished job.")
def completion_time_rewritten():
    tidy_up = engine._tidy_up

    def again(builder: ReplicasBuilder) -> Any:
        builder.status._fields["completionTime"] = builder.status._now
        return tidy_up(builder)

    return patch(engine, "_tidy_up", again)


@bug("A finished job continues if the states of its pods suggest it.")
def finished_job_resumed():
    return patch(Status, "finished", property(lambda self: self.is_true("Failed")))


@bug("A job that another controller manages is treated like any other.")
def managed_by_ignored():
    return patch(engine, "ignored", lambda *_: False)


@bug("The deadline counts from the creation of the job, not from its start.")
def deadline_from_creation():
    def left(job: Any, status: Any, now: Any) -> float | None:
        born = read_time(job.metadata.creation_timestamp)
        limit = job.run_policy.active_deadline
        return None if limit is None or born is None else limit - (now - born).total_seconds()

    return patch(assess, "seconds_to_deadline", left)


# Queue and controller -------------------------------------------------------------------------------------------------


@bug("The requeue delay that a reconcile returns is ignored.")
def requeue_after_ignored():
    follow = Controller._apply_result

    def forget(self: Controller, key: Any, result: Result) -> None:
        follow(self, key, replace(result, requeue_after=None))

    return patch(Controller, "_apply_result", forget)


@bug("A key that is added while it is processed is dropped.")
def add_while_processing_lost():
    add = WorkQueue.add

    def lose(self: Any, key: Any, priority: int = 0) -> None:
        if key not in self._working:
            add(self, key, priority)

    return patch(WorkQueue, "add", lose)


# Watches and caches ---------------------------------------------------------------------------------------------------


@bug("After 410 the same watch is repeated at the same version.")
def gone_ignored():
    return mock.patch.dict(watcher._WATCHING, {watcher.Cause.EXPIRED: watcher.Reaction.RETRY})


@bug("A watch that ended is restarted at version 0, so deletions in between are missed.")
def watch_restarted_from_zero():
    opened = Reflector._open

    async def from_zero(self: Any, action: Any) -> None:
        await opened(self, replace(action, version="0") if action.verb is watcher.Verb.WATCH else action)

    return patch(Reflector, "_open", from_zero)


@bug("A watch that ended is restarted at the latest version, so all events in between are missed.")
def watch_restarted_from_now():
    opened = Reflector._open

    async def from_now(self: Any, action: Any) -> None:
        await opened(self, replace(action, version="") if action.verb is watcher.Verb.WATCH else action)

    return patch(Reflector, "_open", from_now)


@bug("Objects that are missing from a list stay in the cache.")
def tombstone_lost():
    return patch(Store, "prune", lambda *_: [])


@bug("Objects that are missing from a list leave the cache without a delete event.")
def tombstone_without_event():
    prune = Store.prune

    def silently(self: Any, *args: Any) -> list[Change[Any]]:
        prune(self, *args)
        return []

    return patch(Store, "prune", silently)


# Election -------------------------------------------------------------------------------------------------------------


@bug("A replica that was frozen while another took the lease continues to write.")
def lease_fencing_off():
    return patch(LeaderElector, "gate", lambda _: None)


@bug("A replica that has lost the lease continues.")
def lost_lease_ignored():
    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(patch(LeaderElector, "_lose", lambda *_: None))
            stack.enter_context(patch(LeaderElector, "gate", lambda _: None))
            yield

    return plant()
