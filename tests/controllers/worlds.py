"""A job of every kind, its reconciles as the controllers make them, and its pods all running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tests.controllers.kinds import KINDS, make
from tests.engine.world import World
from tests.kinds.dijob_world import DiWorld, dijob
from tests.kinds.mpi_world import MpiWorld, mpi_job
from trainop.engine.actions import Plan
from trainop.engine.kind import Kind, kind_of
from trainop.engine.progress import ProgressEndpoint
from trainop.engine.seen import Options
from trainop.kinds.dijob.kind import DIJOB
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import SECRETS, Json

OPTIONS = Options(waiting_after=0, progress=ProgressEndpoint("https://x", everywhere=True, authority="PEM"))


def kind_in(world: World) -> Kind:
    if isinstance(world, MpiWorld):
        return world.kind
    return DIJOB if isinstance(world, DiWorld) else kind_of(world.framework)


def decide(world: World, **seen: Any) -> Plan:
    """One reconcile."""
    made = kind_in(world).decide(replace(world.snapshot(), **seen))
    world.carry_out(made)
    return made


def settle(world: World) -> None:
    """Reconciles until nothing changes."""
    for _ in range(30):
        made = decide(world)
        actions = [
            each for each in made.actions if getattr(each, "resource", None) != SECRETS
        ]  # checked again and again
        if made.status is None and not actions and not made.annotations:
            return
    raise AssertionError(made)


def start(world: World) -> None:
    """All pods run, also that of a launcher's batch Job."""
    if isinstance(world, MpiWorld) and world.kind.launcher is not None:
        if "foo-launcher-x" not in world.pods:
            world.launch()
        world.run_workers()
    world.run()
    settle(world)


def annotate(job: Json, **annotations: str) -> Json:
    """Adds annotations of the operator, `_` for `-`."""
    named = {f"trainop.kubeflow.org/{name.replace('_', '-')}": value for name, value in annotations.items()}
    job["metadata"]["annotations"] = {**job["metadata"].get("annotations", {}), **named}
    return job


def _of(make_world: Callable[[Json], World], job: Callable[[], Json], **annotations: str) -> World:
    world = make_world(annotate(job(), **annotations))
    settle(world)
    return world


def _job_world(kind: str, job: Json) -> World:
    return World(job, framework=FRAMEWORKS[kind], options=OPTIONS)


WORLDS: dict[str, Callable[..., World]] = {
    kind: partial(_of, partial(_job_world, kind), partial(make, kind, policy="OnFailure")) for kind in KINDS
}
WORLDS |= {
    "MPIJob over ssh": partial(_of, partial(MpiWorld, options=OPTIONS), mpi_job),
    "MPIJob with exec": partial(_of, partial(MpiWorld, options=OPTIONS, ssh=False), partial(mpi_job, transport="exec")),
    "DIJob": partial(_of, partial(DiWorld, options=OPTIONS), dijob),
}
"""A job of each kind with these annotations, whose pods are pending."""
