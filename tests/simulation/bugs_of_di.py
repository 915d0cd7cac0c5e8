"""Planted bugs of DIJobs and of di-server."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.engine.builders import pod_created
from tests.simulation.di_draw import THEMES
from tests.simulation.families import DI, ThemeOf
from tests.simulation.planting import bug, patch
from trainop.diserver import journal, operations, records, victims
from trainop.diserver.journal import HeldLease, Journal
from trainop.diserver.operations import Operations
from trainop.diserver.writer import PodWriter
from trainop.kinds.dijob import clean_up, plan, status, world
from trainop.kinds.dijob.clean_up import leftover_pods
from trainop.kinds.dijob.names import Role

of_di = functools.partial(bug, family=DI)
CALM = ThemeOf(0, len(THEMES))


# di-server ------------------------------------------------------------------------------------------------------------


async def _nothing(*_: Any, **__: Any) -> None: ...


@of_di("The pods of a request that failed, or whose server died, stay.", rare=True)
def half_made_groups_stay():
    return patch(PodWriter, "undo", _nothing)


@of_di("A client that repeats a request gets new pods, although it was carried out.")
def repeated_requests_doubled():
    return patch(journal, "undelivered", lambda *_: [])


@of_di("An undelivered answer is forgotten when there is another request for the job.", theme=CALM, rare=True)
def answers_forgotten_over_other_requests():
    found = records.undelivered

    def latest(record: Any, *args: Any) -> Any:
        return [past for past in found(record, *args) if past.digest == record.digest]

    return patch(journal, "undelivered", latest)


@of_di("Two requests for one job act at the same time.")
def requests_at_the_same_time():
    @contextmanager
    def plant() -> Iterator[None]:
        free = patch(Journal, "_is_free", lambda *_: True)
        with free, patch(HeldLease, "write", _nothing), patch(PodWriter, "undo", _nothing):
            yield

    return plant()


@of_di("Failed replicas are replaced, and stay.")
def replaced_pods_stay():
    decide = Operations._decide

    async def keep(self: Operations, held: HeldLease, answer: Any, delete: Any = ()) -> None:
        await decide(self, held, answer, () if held.record.state == "open" and b"recreate" in answer.body else delete)

    return patch(Operations, "_decide", keep)


@of_di("An aggregator is deleted without its ddp learners.")
def ddp_learners_leaked():
    choose = victims.choose_victims

    def alone(*args: Any) -> Any:
        found = choose(*args)
        return found._replace(pods=[pod for pod in found.pods if "-ddp-learner-" not in pod.name])

    return patch(operations, "choose_victims", alone)


# The operator ---------------------------------------------------------------------------------------------------------


@of_di("A job fails when any of its pods has failed.")
def every_pod_decides():
    follow = status.follow_coordinator

    def by_any(found: world.World, coordinator: Any) -> bool:
        failed = [pod for pod in found.pods if pod.status.phase == "Failed"]
        return follow(found, failed[0] if failed else coordinator)

    return patch(plan, "follow_coordinator", by_any)


@of_di("Only coordinators get a service.")
def services_of_coordinators_only():
    reconcile = plan._reconcile_services

    def alone(found: world.World) -> None:
        before, found.pods = found.pods, [pod for pod in found.pods if world.role_of_pod(pod) is Role.COORDINATOR]
        reconcile(found)
        found.pods = before

    return patch(plan, "_reconcile_services", alone)


@of_di("The services of a finished job stay.")
def services_outlive_their_job():
    return patch(plan, "leftover_services", lambda _: [])


@of_di("cleanPodPolicy Running deletes pods that have ended, too.", theme=CALM)
def ended_pods_cleaned_up():
    def kept(_pod: Any, policy: str) -> bool:
        return policy == "None"

    return patch(clean_up, "_is_kept", kept)


@of_di("The last pod of a finished job stays.")
def last_pod_left():
    def all_but_one(found: Any, policy: str, *, graceful: bool) -> Any:
        return leftover_pods(found[1:], policy, graceful=graceful)

    return patch(plan, "leftover_pods", all_but_one)


@of_di("A coordinator that was deleted is not created again.")
def coordinator_created_once():
    proceed = plan._proceed

    def once(found: world.World, *, is_new: bool) -> Any:
        made = proceed(found, is_new=is_new)
        if found.phase != "Running":
            return made
        found.builder.actions = [action for action in found.builder.actions if not pod_created(action)]
        return found.builder.plan(status_first=is_new)

    return patch(plan, "_proceed", once)
