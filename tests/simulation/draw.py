"""Generates the script of a seed at random, with the weights of its theme."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.simulation import intruders
from tests.simulation.checkpoint_draw import DRAIN, draw_checkpoints
from tests.simulation.di_draw import draw_di
from tests.simulation.facts import Slot
from tests.simulation.families import DI, GANG, MPI, STILL, family_of, number_in_family
from tests.simulation.fault_rates import draw_fault_rates
from tests.simulation.gang_draw import with_gang
from tests.simulation.mpi_draw import draw_mpi
from tests.simulation.script import (
    BACKOFF,
    DEADLINE,
    FAIL,
    FOREIGN,
    REQUIRED,
    SUCCEED,
    JobPlan,
    Script,
    Step,
    replica_spec,
)
from tests.simulation.staged import stage
from tests.simulation.still_draw import draw_still
from tests.simulation.themes import ENCORES, LOSSES, SCENES, Scene, Theme, Weights, theme_of
from trainop.engine.extensions import INFRA_RESTART_LIMIT, MODES, RESTART_SCOPE, SCOPES, SERVICE_MODE
from trainop.engine.parse import parse
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured

RETRYABLE = (130, 137, 143, 255)
SPANS = {"outage": (2, 15), "no quorum": (0.5, 8), "no admission": (0.5, 8), "node": (5, 40)}
"""Seconds."""
MOST_FAILING = 2
"""Slots of a job whose pods fail; more fail in the same way, and take as long again."""
LEASES = ((15.0, 10.0, 2.0), *[(20.0, 15.0, 5.0)] * 3)
"""The usual one now and then: renewals take time and show little."""
OF_USERS = {Scene.SUCCESSOR, Scene.PAUSE}
"""Of which the end shows that there was an encore."""
EDITS: tuple[Json, ...] = (
    {"metadata": {"annotations": {RESTART_SCOPE: "Job"}}},
    {"metadata": {"annotations": {RESTART_SCOPE: "all"}}},
    {"metadata": {"annotations": {SERVICE_MODE: "Replica"}}},
    {"spec": {"runPolicy": {"cleanPodPolicy": "running"}}},
    {"spec": {"runPolicy": {"cleanPodPolicy": "Succeeded"}}},
    {"spec": {"runPolicy": {"backoffLimit": -1}}},
)
"""Each makes the job one that validation refuses."""
PROPAGATIONS = ("Background", "Foreground")


def draw_script(seed: int) -> Script:
    """The script of a seed, complete before the run starts."""
    if family_of(seed) == MPI:
        return draw_mpi(seed, number_in_family(seed))
    if family_of(seed) == DI:
        return draw_di(seed, number_in_family(seed))
    if family_of(seed) == STILL:
        return draw_still(seed, number_in_family(seed))
    if family_of(seed) == GANG:
        turn, rest = divmod(number_in_family(seed), 4)
        return with_gang(draw_mpi(seed, turn) if rest == 3 else _draw_themed(seed))
    return stage(seed) or _draw_themed(seed)


def _draw_themed(seed: int) -> Script:
    rng, theme = random.Random(f"{seed}/script"), theme_of(seed)
    scene = theme.scene or (rng.choice(list(Scene)) if rng.random() < 0.5 else Scene.NONE)
    orderly = rng.random() < theme.orderly
    hold = rng.uniform(5, 25) if orderly else 0.0
    calm_at = hold + rng.uniform(*theme.lasts)
    jobs = tuple(_draw_job(rng, theme, f"j{number}", orderly) for number in range(1 + (rng.random() < 0.1)))
    replicas = 1 + (rng.random() < theme.pair)
    lease = rng.choice(LEASES)
    until = hold - 1 if orderly else calm_at
    steps = sorted(step for job in jobs for step in _draw_steps(rng, theme, scene, job, until, orderly))
    jobs, switches = _draw_modes(random.Random(f"{seed}/modes"), jobs, steps, until, orderly)
    steps = sorted([*steps, *switches])
    jobs, drains = draw_checkpoints(random.Random(f"{seed}/checkpoints"), jobs, calm_at)
    delicate = orderly and any(job.delicate for job in jobs)
    chaos = [*_draw_chaos(rng, theme, steps, calm_at, replicas, lease[0], delicate), *drains]
    chaos += SCENES[scene](rng, steps, calm_at, replicas, lease[0])
    if not orderly:
        chaos += _draw_intrusions(rng, theme, steps, calm_at)
        chaos += _draw_denials(random.Random(f"{seed}/denials"), theme, steps, calm_at)
        chaos += [
            Step(rng.uniform(0, calm_at), "evict")
            for job in jobs
            for _ in range(int(job.annotations.get(INFRA_RESTART_LIMIT, "50")) + 1)
            if int(job.annotations.get(INFRA_RESTART_LIMIT, "50")) < 50
        ]
    return Script(
        seed=str(seed),
        jobs=jobs,
        steps=tuple(steps),
        chaos=tuple(sorted(step for step in chaos if not (delicate and step.act in {*LOSSES, DRAIN}))),
        fault_rates=draw_fault_rates(rng, {*theme.sure, *rng.sample(theme.fault_rates, rng.choice(theme.kinds))}),
        storm_at=0.0 if rng.random() < 0.2 else rng.choice(steps[:2]).at - 0.05,
        calm_at=calm_at,
        encore=() if delicate or (orderly and scene in OF_USERS) else ENCORES.get(scene, ()),
        hold=hold,
        orderly=orderly,
        replicas=replicas,
        lease=lease,
        events=rng.random() < 0.25,
        lingering=not orderly and random.Random(f"{seed}/lingering").random() < theme.lingering,
        force_delete_after=rng.choice((None, None, 15.0)),
        stubborn=rng.choice((0.0, 0.0, 0.3)),
    )


def _weighed(rng: random.Random, weights: Weights) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


# Jobs -----------------------------------------------------------------------------------------------------------------


def _draw_job(rng: random.Random, theme: Theme, name: str, orderly: bool) -> JobPlan:
    while True:
        job = _try_job(rng, theme, name, orderly)
        if not parse(job.framework, Unstructured(job.body())).errors:
            return job


def _try_job(rng: random.Random, theme: Theme, name: str, orderly: bool) -> JobPlan:
    framework = rng.choice(list(FRAMEWORKS.values()))
    goal = _weighed(rng, theme.goals)
    roles = rng.sample(list(framework.roles), min(rng.choice((1, 1, 2, 2, 3)), len(framework.roles)))
    most = rng.choice((1, 2, 2, 3))
    counts = {
        role: max(1, bounds.minimum, rng.randint(1, min(most, bounds.maximum or most)))
        for role, bounds in framework.roles.items()
        if role in roles or role in framework.required_roles
    }
    restarts = rng.choice(("ExitCode", "ExitCode", "OnFailure"))
    policies = {role: _draw_policy(rng, goal, restarts) for role in counts}
    specs = {role: replica_spec(framework, count, policies[role]) for role, count in counts.items()}
    slots = [(role.lower(), index) for role, count in counts.items() for index in range(count)]
    run_policy: Json = {"cleanPodPolicy": rng.choice(("None", "Running", "All"))}
    spec = {framework.replica_specs: specs, "runPolicy": run_policy, **REQUIRED.get(framework.kind, {})}
    plan = JobPlan(name, framework.kind, spec, goal, delicate="Never" in policies.values())
    if not slots:
        return plan
    if goal == FOREIGN:
        run_policy["managedBy"] = "kueue.x-k8s.io/multikueue"
    if goal == DEADLINE:
        run_policy["activeDeadlineSeconds"] = rng.randint(3, 40)
    if goal in {SUCCEED, FAIL, DEADLINE} and rng.random() < 0.4:
        run_policy["ttlSecondsAfterFinished"] = rng.choice((0, 5, 20, 60))
    if rng.random() < (0.5 if goal == DEADLINE else 0.08):
        run_policy["suspend"] = True
    if goal in {FAIL, BACKOFF} or rng.random() >= theme.plain:
        plan = replace(plan, **_draw_fates(rng, goal, slots, policies, run_policy))
    return _annotated(rng, plan, orderly)


def _draw_policy(rng: random.Random, goal: str, restarts: str) -> str:
    if goal == BACKOFF:
        return restarts
    return rng.choice((*["ExitCode"] * 4, *["OnFailure"] * 2, "Always", "Never"))


def _draw_fates(
    rng: random.Random, goal: str, slots: list[Slot], policies: Mapping[str, str], run_policy: Json
) -> dict[str, Any]:
    policy_of = {role.lower(): policy for role, policy in policies.items()}
    fates: dict[str, Any] = {}
    culprit = rng.choice(slots)
    attempts: dict[Slot, tuple[int, ...]] = {}
    in_place: dict[Slot, int] = {}
    for slot in slots:
        if goal == DEADLINE:
            continue  # a failed pod at that moment stays or is replaced, whichever was first
        if rng.random() < 0.5 and policy_of[slot[0]] == "ExitCode":
            attempts[slot] = tuple(rng.choice(RETRYABLE) for _ in range(rng.randint(1, 3)))
        elif rng.random() < 0.2 and policy_of[slot[0]] in {"OnFailure", "Always"}:
            in_place[slot] = rng.randint(1, 3)
    if goal == BACKOFF:
        limit = rng.randint(0, 3)
        run_policy["backoffLimit"] = limit
        attempts, in_place = {}, {}
        if policy_of[culprit[0]] == "ExitCode":
            attempts = {culprit: tuple(rng.choice(RETRYABLE) for _ in range(limit + 1))}
        else:
            in_place = {culprit: max(1, limit)}
    elif goal == FAIL:
        fates["culprit"] = culprit
        if policy_of[culprit[0]] not in {"ExitCode", "Never"}:
            fates["culprit"] = next((slot for slot in slots if policy_of[slot[0]] in {"ExitCode", "Never"}), None)
    attempts = dict([*attempts.items()][:MOST_FAILING])
    if goal not in {BACKOFF, FAIL} and rng.random() < 0.3:
        run_policy["backoffLimit"] = sum(map(len, attempts.values())) + sum(in_place.values()) + 1
    return fates | {"attempts": attempts, "in_place": in_place}


def _annotated(rng: random.Random, plan: JobPlan, orderly: bool) -> JobPlan:
    """The plan with random annotations that change the operator's behaviour. Marks the job as delicate where pods lost
    to faults could change its end."""
    annotations, delicate = {}, plan.delicate
    if rng.random() < 0.5:
        annotations[RESTART_SCOPE] = scope = rng.choice(SCOPES)
        if scope != "pod" and plan.goal == BACKOFF:
            delicate = True  # a pod that fails together with one that is lost does not count
        elif scope != "pod":  # a few rounds, since each takes longer than the one before
            plan = replace(plan, attempts={slot: codes[:2] for slot, codes in [*plan.attempts.items()][:2]})
    if rng.random() < 0.3:
        annotations[SERVICE_MODE] = rng.choice(MODES[:2])
    if rng.random() < 0.3:
        limit = rng.choice((0, 1, 2, 50))
        annotations[INFRA_RESTART_LIMIT] = str(limit)
        delicate |= orderly and limit < 50
    return replace(plan, annotations=annotations, delicate=delicate)


def _draw_modes(
    rng: random.Random, jobs: tuple[JobPlan, ...], steps: list[Step], until: float, orderly: bool
) -> tuple[tuple[JobPlan, ...], list[Step]]:
    """Service mode `job` for some jobs, and steps that change the mode of some jobs while they run."""
    switches: list[Step] = []
    for job in jobs:
        if rng.random() < 0.3 and not orderly:  # without pods, as after a fault, the new mode begins
            created = min(step.at for step in steps if (step.act, step.subject) == ("create", job.name))
            annotated = {"metadata": {"annotations": {SERVICE_MODE: rng.choice(MODES)}}}
            switches.append(Step(rng.uniform(min(created + 1, until), until), "edit", job.name, annotated))
    shared = [rng.random() < 0.3 for _ in jobs]
    drawn = [
        replace(job, annotations={**job.annotations, SERVICE_MODE: "job"}) if is_shared else job
        for job, is_shared in zip(jobs, shared, strict=True)
    ]
    return tuple(drawn), switches


# Users ----------------------------------------------------------------------------------------------------------------


def _draw_steps(
    rng: random.Random, theme: Theme, scene: Scene, job: JobPlan, until: float, orderly: bool
) -> Iterator[Step]:
    """The job is created and sometimes changed. A job with a deadline is not touched, because the deadline runs from
    the start."""
    at = rng.uniform(0.5, until / 3)
    yield Step(at, "create", job.name)
    if job.goal == DEADLINE and job.spec["runPolicy"].get("suspend"):
        yield Step(rng.uniform(at, until), "resume", job.name)
    if orderly and job.goal == DEADLINE:
        return
    if scene is Scene.SUCCESSOR:
        at = min(at + rng.uniform(0.8, 3), until)
        yield from _draw_step(rng, job, at, "recreate", until, orderly)
    for _ in range(rng.randint(0, theme.most_deeds)):
        at = rng.uniform(at, until)
        yield from _draw_step(rng, job, at, _weighed(rng, theme.deeds), until, orderly)


def _draw_step(rng: random.Random, job: JobPlan, at: float, act: str, until: float, orderly: bool) -> Iterator[Step]:
    if act == "edit":
        if not orderly:
            yield Step(at, "edit", job.name, rng.choice(EDITS))
    elif act == "scale":
        free = [role for role in job.spec[job.framework.replica_specs] if job.framework.roles[role].maximum is None]
        if free:
            yield Step(at, "scale", job.name, (rng.choice(free), rng.randint(1, 3)))
    elif act == "delete":
        if rng.random() < 0.3:
            yield Step(at, "delete", job.name, rng.choice(PROPAGATIONS))
    elif act == "pause":
        yield Step(at, "suspend", job.name)
        yield Step(min(at + rng.choice((0.01, 0.5, 2.0)), until), "resume", job.name)
    elif act == "recreate":
        yield Step(at, "delete", job.name, rng.choice(PROPAGATIONS))
        yield Step(min(at + rng.choice((0.001, 0.01, 0.3, 3.0)), until), "create", job.name)
    else:
        yield Step(at, act, job.name)


# Fate -----------------------------------------------------------------------------------------------------------------


def _draw_chaos(
    rng: random.Random, theme: Theme, steps: list[Step], until: float, replicas: int, lease: float, delicate: bool
) -> Iterator[Step]:
    """Faults at random times, half of them at steps of users. A replica frozen for longer than `lease` seconds may find
    another leader when it resumes."""
    moments = [step.at for step in steps]
    acts = [act for act in theme.acts if act != "freeze" or replicas > 1 or rng.random() < 0.3]
    chosen = rng.sample(acts, min(rng.randint(0, theme.most_acts), len(acts)))
    if not delicate:
        chosen += rng.sample(theme.losses, min(rng.randint(0, theme.most_losses), len(theme.losses)))
    for act in chosen:
        for _ in range(rng.randint(1, 2)):
            at = rng.uniform(0, until) if rng.random() < 0.5 else rng.choice(moments) + rng.uniform(-0.2, 0.5)
            yield Step(max(0.0, at), act, f"op{rng.randint(1, replicas)}", _draw_value(rng, act, lease))


def _draw_intrusions(rng: random.Random, theme: Theme, steps: list[Step], until: float) -> Iterator[Step]:
    """Pods are planted before their job exists, or at any time."""
    if rng.random() < theme.intruders:
        created = [step.at for step in steps if step.act == "create"]
        for act in rng.choices(sorted(intruders.ACTS), k=rng.randint(1, 2)):
            early = act == "plant" and rng.random() < 0.6
            yield Step(max(0.0, rng.choice(created) - rng.uniform(0.1, 3)) if early else rng.uniform(0, until), act)


def _draw_denials(rng: random.Random, theme: Theme, steps: list[Step], until: float) -> Iterator[Step]:
    """Refusals of pods before a job is created, or while it runs and has just lost a pod."""
    if rng.random() >= theme.denials:
        return
    created = rng.choice([step.at for step in steps if step.act == "create"])
    span = rng.uniform(2, 10), rng.choice(("", "", "-0", "-1"))
    if rng.random() < 0.3:
        yield Step(max(0.0, created - 0.1), "deny", "", span)
    else:
        at = rng.uniform(min(created + 2, until), until)
        yield Step(at, "deny", "", span)
        for _ in range(2):
            yield Step(min(at + rng.uniform(0.1, 2), until), rng.choice(("evict", "vanish")))


def _draw_value(rng: random.Random, act: str, lease: float) -> Any:
    match act:
        case "freeze":  # now, or as soon as it writes
            long = rng.random() < 0.75
            return lease * rng.uniform(1.2, 1.8) if long else rng.uniform(1, 8), rng.random() < 0.8
        case "lag":
            return rng.choice(("jobs", "jobs", "pods", "services")), rng.uniform(3, 25)
        case "jump":
            return rng.choice((-3600.0, -20.0, 20.0, 3600.0))
    return rng.uniform(*SPANS[act]) if act in SPANS else None
