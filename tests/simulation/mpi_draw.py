"""Generates the scripts of seeds with MPIJobs of both transports."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.simulation import mpi_users
from tests.simulation.fault_rates import draw_fault_rates
from tests.simulation.mpi_node import LAUNCHER
from tests.simulation.script import FAIL, FOREIGN, RUN, SUCCEED, JobPlan, Script, Step
from tests.simulation.themes import LOSSES, OPERATOR, REQUESTS, SERVER, WATCHES
from trainop.kinds.mpi.transport import EXEC, SSH
from trainop.runtime.objects.metadata import Json

SPANS = {"outage": (2, 15), "no quorum": (0.5, 8), "no admission": (0.5, 8), "node": (5, 40)}
SPANS |= {"jobs away": (3, 40), "jobs slow": (5, 40)}
"""Seconds."""
RARE = {"delete config", "delete service", "delete role", "delete binding", "flip transport"}
MEDDLING = tuple(sorted(mpi_users.ACTS - RARE))
"""What users do most."""
PROPAGATIONS = ("Background", "Foreground")


@dataclass(frozen=True)
class MpiTheme:
    """Which faults are frequent in a seed."""

    name: str
    fault_rates: tuple[str, ...] = ()
    kinds: tuple[int, ...] = (0,)
    """How many kinds of faults of the network are drawn."""
    acts: tuple[str, ...] = ()
    most_acts: int = 0
    losses: tuple[str, ...] = ("vanish", "delete pod", "node", "evict")
    most_losses: int = 0
    meddling: tuple[str, ...] = MEDDLING
    most_meddling: int = 0
    most_deeds: int = 3
    pair: float = 0.1
    """How often there are two replicas."""
    by_exec: float = 0.25
    """How often jobs have transport exec."""


THEMES = (
    MpiTheme("fair", losses=("evict", "evict", "preempt", "delete pod", "vanish", "node"), most_losses=3),
    MpiTheme("users", most_meddling=5, meddling=tuple(sorted(mpi_users.ACTS)), acts=("kill", "lag"), most_acts=1),
    MpiTheme(
        "names", by_exec=0.8, most_meddling=5, losses=("vanish", "delete pod"), most_losses=1,
        meddling=("take name", "take name", "delete worker", "delete role", "delete binding"),
    ),
    MpiTheme(
        "keys", most_deeds=1, most_meddling=6,
        meddling=("delete secret", "delete secret", "empty secret", "delete worker", "delete worker", "flip transport"),
    ),
    MpiTheme(
        "launchers", acts=("jobs away", "jobs slow"), most_acts=1, most_losses=1, most_meddling=5,
        meddling=("delete launcher", "delete launcher", "delete launcher", "delete launcher pod"),
    ),
    MpiTheme(
        "replicas", acts=(*OPERATOR, "outage", "no quorum"), most_acts=2, most_meddling=1, pair=0.7, kinds=(0, 0, 1, 2),
        fault_rates=REQUESTS + WATCHES,
    ),
    MpiTheme("watches", fault_rates=WATCHES, kinds=(0, 1, 3), acts=("lag", "cut", "compact"), most_acts=2,
             most_losses=1, losses=("vanish", "vanish unseen", "delete pod"), most_meddling=1),
    MpiTheme("refusals", fault_rates=REQUESTS, kinds=(0, 1, 2), acts=("kill", *SERVER), most_acts=2, most_losses=1),
    MpiTheme(
        "anything", fault_rates=REQUESTS + WATCHES, kinds=(1, 3, 5),
        acts=(*OPERATOR, *SERVER, "jobs away", "jobs slow"), most_acts=3, losses=LOSSES, most_losses=2,
        most_meddling=2, pair=0.4,
    ),
)  # fmt: skip


def draw_mpi(seed: int, number: int) -> Script:
    """The script of a seed, the `number`-th of its family."""
    rng, theme = random.Random(f"{seed}/mpi"), THEMES[number % len(THEMES)]
    calm_at = rng.uniform(20, 45)
    jobs = tuple(_draw_job(rng, f"j{index}", theme.by_exec) for index in range(1 + (rng.random() < 0.1)))
    steps = tuple(sorted(step for job in jobs for step in _draw_steps(rng, theme, job, calm_at)))
    replicas = 1 + (rng.random() < theme.pair)
    chaos = sorted(_draw_chaos(rng, theme, steps, calm_at, replicas))
    return Script(
        seed=str(seed),
        family="mpi",
        jobs=jobs,
        steps=steps,
        chaos=tuple(chaos),
        fault_rates=draw_fault_rates(rng, rng.sample(theme.fault_rates, rng.choice(theme.kinds))),
        storm_at=0.0 if rng.random() < 0.3 else steps[0].at - 0.05,
        calm_at=calm_at,
        orderly=False,
        replicas=replicas,
        events=rng.random() < 0.2,
        force_delete_after=rng.choice((None, None, 15.0)),
        stubborn=rng.choice((0.0, 0.0, 0.3)),
    )


# Jobs -----------------------------------------------------------------------------------------------------------------


def _draw_job(rng: random.Random, name: str, by_exec: float) -> JobPlan:
    transport = EXEC if rng.random() < by_exec else SSH
    goal = rng.choices((SUCCEED, FAIL, RUN, FOREIGN), (8, 3, 10, 1))[0]
    policy: Json = {"cleanPodPolicy": rng.choice(("None", "Running", "Running", "All"))}
    if goal == FOREIGN:
        policy["managedBy"] = "kueue.x-k8s.io/multikueue"
    if goal == FAIL or rng.random() < 0.3:
        policy["backoffLimit"] = rng.randint(0, 2)
    if rng.random() < 0.15:
        policy["suspend"] = True
    if rng.random() < 0.1:
        policy["ttlSecondsAfterFinished"] = rng.choice((20, 60, 100))
    workers = rng.choice((1, 2, 2, 3, 4))
    make = _exec_spec if transport == EXEC else _ssh_spec
    spec = make(rng, workers) | {"runPolicy": policy}
    attempts: dict[Any, tuple[int, ...]] = {}
    if goal != FAIL and rng.random() < 0.3:
        attempts[LAUNCHER] = tuple(rng.choice((1, 137)) for _ in range(rng.randint(1, 2)))
    if transport == EXEC:
        attempts = {slot: (137,) * len(codes) for slot, codes in attempts.items()}
    return JobPlan(name, "MPIJob", spec, goal, attempts, transport=transport)


def _ssh_spec(rng: random.Random, workers: int) -> Json:
    launcher = _replicas(1, rng.choice((None, "Never", "OnFailure")), command=["mpirun"])
    worker = _replicas(workers, rng.choice((None, "Never", "OnFailure")))
    spec: Json = {"mpiReplicaSpecs": {"Launcher": launcher, "Worker": worker}}
    if rng.random() < 0.5:
        spec["launcherCreationPolicy"] = "WaitForWorkersReady"
    if rng.random() < 0.3:
        spec["runLauncherAsWorker"] = True
    if rng.random() < 0.5:
        spec["mpiImplementation"] = rng.choice(("OpenMPI", "Intel", "MPICH"))
    if rng.random() < 0.3:
        spec["slotsPerWorker"] = rng.randint(1, 4)
    return spec


def _exec_spec(rng: random.Random, workers: int) -> Json:
    launcher = _replicas(1, rng.choice(("Never", "ExitCode", "ExitCode")), command=["mpirun"])
    worker = _replicas(workers, rng.choice(("Never", "ExitCode", "OnFailure")))
    return {"mpiReplicaSpecs": {"Launcher": launcher, "Worker": worker}, "slotsPerWorker": rng.randint(1, 2)}


def _replicas(count: int, policy: str | None, **container: Any) -> Json:
    template = {"spec": {"containers": [{"name": "mpi", "image": "img", **container}]}}
    return {"replicas": count, "template": template} | ({"restartPolicy": policy} if policy else {})


# Users and fate -------------------------------------------------------------------------------------------------------


def _draw_steps(rng: random.Random, theme: MpiTheme, job: JobPlan, until: float) -> Iterator[Step]:
    at = rng.uniform(0.5, until / 4)
    yield Step(at, "create", job.name)
    for _ in range(rng.randint(0, theme.most_deeds)):
        at = rng.uniform(at, until)
        act = rng.choices(("suspend", "resume", "pause", "scale", "recreate", "delete"), (6, 2, 3, 6, 2, 0.4))[0]
        if act == "pause":
            yield Step(at, "suspend", job.name)
            yield Step(min(at + rng.choice((0.01, 0.5, 3.0)), until), "resume", job.name)
        elif act == "recreate":
            yield Step(at, "delete", job.name, rng.choice(PROPAGATIONS))
            yield Step(min(at + rng.choice((0.01, 0.3, 3.0)), until), "create", job.name)
        elif act == "scale":
            yield Step(at, "scale", job.name, ("Worker", rng.randint(1, 5)))
        else:
            yield Step(at, act, job.name, rng.choice(PROPAGATIONS) if act == "delete" else None)


def _draw_chaos(
    rng: random.Random, theme: MpiTheme, steps: tuple[Step, ...], until: float, replicas: int
) -> Iterator[Step]:
    acts = rng.sample(theme.acts, min(rng.randint(0, theme.most_acts), len(theme.acts)))
    acts += rng.choices(theme.losses, k=rng.randint(0, theme.most_losses))
    acts += rng.choices(theme.meddling, k=rng.randint(0, theme.most_meddling))
    moments = [step.at for step in steps]
    for act in acts:
        at = rng.uniform(0, until) if rng.random() < 0.6 else rng.choice(moments) + rng.uniform(-0.2, 0.5)
        yield Step(min(max(0.0, at), until - 0.1), act, f"op{rng.randint(1, replicas)}", _draw_value(rng, act))


def _draw_value(rng: random.Random, act: str) -> Any:
    match act:
        case "freeze":
            return rng.uniform(5, 28), rng.random() < 0.7
        case "lag":
            return rng.choice(("jobs", "pods", "services")), rng.uniform(3, 25)
        case "jump":
            return rng.choice((-20.0, 20.0, 3600.0))
    return rng.uniform(*SPANS[act]) if act in SPANS else None
