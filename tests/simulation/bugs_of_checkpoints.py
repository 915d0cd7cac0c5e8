"""Planted bugs of jobs whose replicas save when they are ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulation.planting import bug, patch
from trainop.engine import assess, kind, manifests
from trainop.engine.steps import restarts


@bug("A disruption replaces one pod, although the job asks for the end of all.", rare=True)
def disrupted_alone():
    return patch(assess, "find_disruptions", lambda *_: None)


@bug("A replica that saves and exits with 0 because it was asked to end has succeeded.")
def saving_is_success():
    return patch(assess, "find_void", lambda *_: frozenset())


@bug("Pods are ended with the grace period of their template, whatever the job asks for.")
def grace_of_the_template():
    @contextmanager
    def plant() -> Iterator[None]:
        with (
            patch(manifests, "raise_grace", lambda spec, _grace: spec),
            patch(kind, "end_together", lambda _seen, plan: plan),
        ):
            yield

    return plant()


@bug("A disruption counts and ends only the disrupted pods of a job that asks for the end of all.", rare=True)
def others_run_on():
    return patch(restarts, "_everyone", lambda _found: iter(()))
