"""Scripts in which something keeps a job from going on for ever. At their end only the rule is judged that the job says
what it waits for (`oracle/standstill.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.families import DI, MPI
from tests.simulation.script import REQUIRED, RUN, JobPlan, Script, Step, replica_spec
from tests.simulation.small import pick_roles
from trainop.engine.framework import Framework
from trainop.kinds.mpi.transport import EXEC, SSH
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

NAME = "j0"
LASTS = 30.0
"""Seconds in which all happens that happens."""


def draw_still(seed: int, number: int) -> Script:
    """The script of a seed, the `number`-th of its family."""
    rng = random.Random(f"{seed}/still")
    return BLIGHTS[number % len(BLIGHTS)](str(seed), rng)


# Jobs -----------------------------------------------------------------------------------------------------------------


def _plan(rng: random.Random) -> JobPlan:
    """A job of any kind with replica types, with two pods of its last one."""
    framework: Framework = rng.choice(list(FRAMEWORKS.values()))
    roles = pick_roles(framework)
    counts = {role: 2 if role == roles[-1] and framework.roles[role].maximum is None else 1 for role in roles}
    specs: Json = {role: replica_spec(framework, count, "OnFailure") for role, count in counts.items()}
    spec = {framework.replica_specs: specs, "runPolicy": {}, **REQUIRED.get(framework.kind, {})}
    return JobPlan(NAME, framework.kind, spec, RUN)


def _mpi(rng: random.Random, transport: str, **fields: Any) -> JobPlan:
    launcher: Json = {"command": ["mpirun"]}
    roles: tuple[tuple[str, int, Json], ...] = (("Launcher", 1, launcher), ("Worker", rng.choice((1, 2, 3)), {}))
    specs = {
        role: {"replicas": count, "template": {"spec": {"containers": [{"name": "mpi", "image": "img", **container}]}}}
        for role, count, container in roles
    }
    return JobPlan(NAME, "MPIJob", {"mpiReplicaSpecs": specs, "runPolicy": {}, **fields}, RUN, transport=transport)


def _di(_rng: random.Random) -> JobPlan:
    section = {"template": {"spec": {"containers": [{"name": "di-container", "image": "img"}]}}}
    return JobPlan(NAME, "DIJob", dict.fromkeys(("coordinator", "collector", "learner"), section), RUN)


def _any(rng: random.Random) -> tuple[JobPlan, str]:
    """A plan of any kind, and the family of its world."""
    return rng.choice(
        (
            (_plan(rng), ""),
            (_plan(rng), ""),
            (_mpi(rng, SSH), MPI),
            (_mpi(rng, EXEC), MPI),
            (_di(rng), DI),
        )
    )


def _script(seed: str, plan: JobPlan, family: str, *chaos: Step, **fields: Any) -> Script:
    steps = (Step(1.0, "create", plan.name),)
    common: Any = {"calm_at": LASTS, "orderly": False, "standing": True, "family": family}
    return Script(seed, (plan,), steps, tuple(sorted(chaos)), **common, **fields)


def _last_pod(plan: JobPlan) -> str:
    """The end of the name of a pod that the job cannot do without."""
    if plan.kind == "DIJob":
        return "-coordinator"
    return "-worker-0" if plan.kind == "MPIJob" else "-0"


# What keeps them ------------------------------------------------------------------------------------------------------


def _never_starts(seed: str, rng: random.Random) -> Script:
    """There is no node for a pod."""
    plan, family = _any(rng)
    return _script(seed, plan, family, unstartable=(_last_pod(plan),))


def _never_leaves(seed: str, rng: random.Random) -> Script:
    """A pod is deleted, and its node is gone."""
    plan, family = _any(rng)
    return _script(seed, plan, family, Step(10.0, "delete pod"), immortal=True)


def _refused(seed: str, rng: random.Random) -> Script:
    """A pod is lost, and an admission policy refuses its successor."""
    plan = rng.choice((_plan(rng), _mpi(rng, SSH), _mpi(rng, EXEC)))
    family = MPI if plan.kind == "MPIJob" else ""
    return _script(seed, plan, family, Step(8.0, "deny", "", (1e9, "")), Step(10.0, "vanish"))


def _unlabelled(seed: str, rng: random.Random) -> Script:
    """Somebody removes the labels of a pod by which it is counted."""
    return _script(seed, _plan(rng), "", Step(10.0, "unlabel"))


def _squatted(seed: str, rng: random.Random) -> Script:
    """A pod of another owner has the name of a pod, before the job is created or when it has lost one."""
    plan, family = _any(rng)
    return _script(seed, plan, family, Step(0.5, "squat", plan.name, plan.name + _slot(plan)))


def _slot(plan: JobPlan) -> str:
    if plan.kind in {"DIJob", "MPIJob"}:
        return _last_pod(plan)
    return f"-{pick_roles(plan.framework)[-1].lower()}-0"


def _never_ready(seed: str, rng: random.Random) -> Script:
    """A launcher waits for workers whose readiness probes fail."""
    return _script(seed, _mpi(rng, SSH, launcherCreationPolicy="WaitForWorkersReady"), MPI, unready=True)


def _invalid(seed: str, rng: random.Random) -> Script:
    """The name of the job is none of a host."""
    plan = replace(_mpi(rng, SSH), name="0j")
    return _script(seed, plan, MPI)


def _no_job_controller(seed: str, rng: random.Random) -> Script:
    """Nobody makes the pod of a launcher."""
    return _script(seed, _mpi(rng, SSH), MPI, Step(0.2, "jobs away", "", 1e9))


def _no_secret(seed: str, rng: random.Random) -> Script:
    """The key is gone and cannot be made anew, and a worker is lost."""
    chaos = Step(7.9, "deny", "", (1e9, "-ssh")), Step(8.0, "delete secret"), Step(9.0, "delete worker")
    return _script(seed, _mpi(rng, SSH), MPI, *chaos)


BLIGHTS: tuple[Callable[[str, random.Random], Script], ...] = (
    _never_starts,
    _never_leaves,
    _refused,
    _unlabelled,
    _squatted,
    _never_ready,
    _invalid,
    _no_job_controller,
    _no_secret,
)
