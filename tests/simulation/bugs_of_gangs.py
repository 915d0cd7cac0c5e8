"""Planted bugs of PodGroups and of the pods that wait for them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.simulation.families import GANG
from tests.simulation.planting import bug, patch
from trainop.engine import gang
from trainop.engine import plan as engine
from trainop.engine.framework import Companion
from trainop.engine.gang_scheduler import GangScheduler
from trainop.engine.steps import gang as gang_step
from trainop.kinds.mpi.ssh import gang as ssh_gang
from trainop.kinds.mpi.ssh import plan as ssh

of_gangs = functools.partial(bug, family=GANG)


@of_gangs("Pods are created whatever the phase of their PodGroup.")
def pods_before_there_is_room():
    return patch(gang_step, "_admits", lambda *_: True)


@of_gangs("The PodGroup stays when its job is suspended or has finished.")
def group_outlives_its_pods():
    @contextmanager
    def plant() -> Iterator[None]:
        with patch(engine, "disband", lambda *_: None), patch(ssh, "disband", lambda *_: None):
            yield

    return plant()


@of_gangs("minAvailable is ignored: all pods have to start together.")
def min_available_ignored():
    return patch(gang.Gang, "min_member", property(lambda self: self.total))


@of_gangs("A PodGroup is not changed when its job is scaled.")
def group_of_the_first_size():
    return patch(gang_step, "changed_fields", lambda *_: {})


@of_gangs("Pods do not name their PodGroup.")
def pods_without_their_group():
    @contextmanager
    def plant() -> Iterator[None]:
        with (
            patch(GangScheduler, "pod_annotations", lambda *_: {}),
            patch(GangScheduler, "pod_labels", lambda *_: {}),
        ):
            yield

    return plant()


@of_gangs("A PodGroup that was deleted is not created again.")
def lost_group_forgotten():
    form, begun = gang_step.GangStep.form, set[str]()

    def unless_begun(self: gang_step.GangStep, **given: bool) -> Sequence[Companion]:
        uid = self._builder.metadata.uid
        if self._group is not None:
            begun.add(uid)
        return [each._replace(held=each.held or (self._group is None and uid in begun)) for each in form(self, **given)]

    return patch(gang_step.GangStep, "form", unless_begun)


@of_gangs("A launcher that waits for its workers is a member of the group for which they wait.", rare=True)
def waiting_launcher_in_the_group():
    view = ssh_gang.gang_view

    def with_launcher(job: Any, spec: Any) -> Any:
        return view(replace(job, creation="AtStartup"), spec)

    return patch(ssh, "gang_view", with_launcher)
