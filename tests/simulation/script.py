"""What a seed decides: the jobs, what becomes of their pods, what users do and when, and which faults there are.

A script is data, drawn before anything runs, so that the same seed can be played with and without faults. There are two
manners. In an `orderly` script users have finished before any pod ends, and pods end together, so that the end does not
depend on who was faster: it must be that of the run without faults. In a `wild` one everything happens at any time;
then only what must never be can be judged, and that nothing is left undone at the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.facts import Slot
from tests.simulation.weather import FAIR, Weather, draw_weather
from trainop.engine.framework import Framework
from trainop.engine.parse import parse
from trainop.operator import FRAMEWORKS
from trainop.runtime.objects import Json, Unstructured

NAMESPACE = "ns"
SUCCEED, FAIL, BACKOFF, DEADLINE, RUN, FOREIGN = "succeed", "fail", "backoff", "deadline", "run", "foreign"
REQUIRED: Mapping[str, Json] = {"MXJob": {"jobMode": "MXTrain"}}
"""Fields that a kind's CRD requires."""

RETRYABLE = (130, 137, 143, 255)


@dataclass(frozen=True)
class JobPlan:
    """A job and the fates of its pods."""

    name: str
    kind: str
    spec: Json
    goal: str
    attempts: Mapping[Slot, tuple[int, ...]] = field(default_factory=dict)
    """Exit codes with which the first pods of a slot end; a pod that is lost in between does not count."""
    in_place: Mapping[Slot, int] = field(default_factory=dict)
    """Restarts of the container within the pod."""
    culprit: Slot | None = None
    """Whose failure ends the job, if its goal is to fail."""
    delicate: bool = False
    """Losing a pod would change the end."""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def framework(self) -> Framework:
        return FRAMEWORKS[self.kind]

    def body(self) -> Json:
        metadata = {"name": self.name, "namespace": NAMESPACE}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)  # type: ignore[assignment]
        return {
            "apiVersion": self.framework.resource.api_version,
            "kind": self.kind,
            "metadata": metadata,
            "spec": self.spec,
        }


@dataclass(frozen=True, order=True)
class Step:
    """Something that happens at a time: users `create`, `delete`, `suspend` …, fate has `kill`, `freeze`, `evict` …"""

    at: float
    act: str
    subject: str = ""
    value: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Script:
    seed: str
    jobs: tuple[JobPlan, ...]
    steps: tuple[Step, ...]
    chaos: tuple[Step, ...] = ()
    weather: Weather = FAIR
    calm_at: float = 30.0
    """When faults end."""
    hold: float = 0.0
    """No pod ends before."""
    orderly: bool = True
    replicas: int = 1
    lease: tuple[float, float, float] = (15.0, 10.0, 2.0)
    force_delete_after: float | None = None
    stubborn: float = 0.0
    """Share of pods that stay Terminating until it is calm, or somebody uses force."""

    def without_faults(self) -> Script:
        return replace(self, chaos=(), weather=FAIR, calm_at=self.hold, stubborn=0.0, replicas=1)

    @property
    def jumps(self) -> bool:
        """Wall clocks are set."""
        return any(step.act == "jump" for step in self.chaos)


def draw_script(seed: int) -> Script:
    """Everything that the seed decides beforehand."""
    rng = random.Random(f"{seed}/script")
    orderly = rng.random() < 0.5
    hold = rng.uniform(5, 25) if orderly else 0.0
    calm_at = hold + rng.uniform(8, 40)
    jobs = tuple(_draw_job(rng, f"j{number}", orderly) for number in range(1 + (rng.random() < 0.2)))
    replicas = 1 + (rng.random() < 0.4)
    lease = rng.choice(((15.0, 10.0, 2.0), (20.0, 15.0, 5.0)))
    until = hold - 1 if orderly else calm_at
    steps = [step for job in jobs for step in _draw_steps(rng, job, until, orderly)]
    delicate = orderly and any(job.delicate for job in jobs)
    return Script(
        seed=str(seed),
        jobs=jobs,
        steps=tuple(sorted(steps)),
        chaos=tuple(sorted(_draw_chaos(rng, calm_at, replicas, lease[0], delicate, steps))),
        weather=draw_weather(rng),
        calm_at=calm_at,
        hold=hold,
        orderly=orderly,
        replicas=replicas,
        lease=lease,
        force_delete_after=rng.choice((None, None, 15.0)),
        stubborn=rng.choice((0.0, 0.0, 0.3)),
    )


# Jobs -----------------------------------------------------------------------------------------------------------------


def _draw_job(rng: random.Random, name: str, orderly: bool) -> JobPlan:
    while True:
        job = _try_job(rng, name, orderly)
        if not parse(job.framework, Unstructured(job.body())).errors:
            return job


def _try_job(rng: random.Random, name: str, orderly: bool) -> JobPlan:
    framework = rng.choice(list(FRAMEWORKS.values()))
    goal = rng.choice((*[SUCCEED] * 6, *[FAIL] * 2, *[BACKOFF] * 3, *[DEADLINE] * 2, *[RUN] * 4, FOREIGN))
    roles = rng.sample(list(framework.roles), min(rng.choice((1, 2, 2, 3)), len(framework.roles)))
    counts = {
        role: rng.randint(max(1, bounds.least), min(3, bounds.most or 3))
        for role, bounds in framework.roles.items()
        if role in roles or role in framework.required_roles
    }
    policies = {role: _draw_policy(rng, goal, orderly) for role in counts}
    specs = {role: replica_spec(framework, count, policies[role]) for role, count in counts.items()}
    slots = [(role.lower(), index) for role, count in counts.items() for index in range(count)]
    run_policy: Json = {"cleanPodPolicy": rng.choice(("None", "Running", "All"))}
    spec = {framework.replica_specs: specs, "runPolicy": run_policy, **REQUIRED.get(framework.kind, {})}
    plan = JobPlan(name, framework.kind, spec, goal)
    if not slots:
        return plan
    if goal == FOREIGN:
        run_policy["managedBy"] = "kueue.x-k8s.io/multikueue"
    if goal == DEADLINE:
        run_policy["activeDeadlineSeconds"] = rng.randint(3, 40)
    if goal in {SUCCEED, FAIL, DEADLINE} and rng.random() < 0.4:
        run_policy["ttlSecondsAfterFinished"] = rng.choice((0, 5, 20, 60))
    if rng.random() < 0.08 and goal != DEADLINE:
        run_policy["suspend"] = True
    return replace(plan, **_draw_fates(rng, goal, slots, policies, run_policy))


def _draw_policy(rng: random.Random, goal: str, orderly: bool) -> str:
    if goal == BACKOFF:
        return "ExitCode"
    return rng.choice((*["ExitCode"] * 4, *["OnFailure"] * 2, "Always", "Never"))


def replica_spec(framework: Framework, count: int, policy: str) -> Json:
    template = {"spec": {"containers": [{"name": framework.container, "image": "img"}]}}
    return {"replicas": count, "restartPolicy": policy, "template": template}


def _draw_fates(
    rng: random.Random, goal: str, slots: list[Slot], policies: Mapping[str, str], run_policy: Json
) -> dict[str, Any]:
    policy_of = {role.lower(): policy for role, policy in policies.items()}
    fates: dict[str, Any] = {"delicate": "Never" in policies.values()}
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
        attempts = {culprit: tuple(rng.choice(RETRYABLE) for _ in range(limit + 1))}
    elif goal == FAIL:
        fates["culprit"] = culprit
        if policy_of[culprit[0]] not in {"ExitCode", "Never"}:
            fates["culprit"] = next((slot for slot in slots if policy_of[slot[0]] in {"ExitCode", "Never"}), None)
    elif rng.random() < 0.3:
        run_policy["backoffLimit"] = sum(map(len, attempts.values())) + sum(in_place.values()) + 1
    return fates | {"attempts": attempts, "in_place": in_place}


# Users ----------------------------------------------------------------------------------------------------------------


def _draw_steps(rng: random.Random, job: JobPlan, until: float, orderly: bool) -> Iterator[Step]:
    """The job is created, and then changed now and then. A deadline runs from the start: nobody touches such a job."""
    at = rng.uniform(0, until / 3)
    yield Step(at, "create", job.name)
    if orderly and job.goal == DEADLINE:
        return
    for _ in range(rng.choice((0, 1, 2, 3, 4, 5))):
        at = rng.uniform(at, until)
        act = rng.choice(("suspend", "resume", "pause", "scale", "scale", "annotate", "recreate", "recreate", "delete"))
        yield from _draw_step(rng, job, at, act, until)


def _draw_step(rng: random.Random, job: JobPlan, at: float, act: str, until: float) -> Iterator[Step]:
    if act == "scale":
        free = [role for role in job.spec[job.framework.replica_specs] if job.framework.roles[role].most is None]
        if free:
            yield Step(at, "scale", job.name, (rng.choice(free), rng.randint(1, 4)))
    elif act == "delete":
        if rng.random() < 0.3:
            yield Step(at, "delete", job.name, rng.choice(("Background", "Foreground")))
    elif act == "pause":
        yield Step(at, "suspend", job.name)
        yield Step(min(at + rng.choice((0.01, 0.5, 2.0)), until), "resume", job.name)
    elif act == "recreate":
        yield Step(at, "delete", job.name, rng.choice(("Background", "Foreground")))
        yield Step(min(at + rng.choice((0.001, 0.01, 0.3, 3.0)), until), "create", job.name)
    else:
        yield Step(at, act, job.name)


# Fate -----------------------------------------------------------------------------------------------------------------


def _draw_chaos(
    rng: random.Random, until: float, replicas: int, lease: float, delicate: bool, steps: list[Step]
) -> Iterator[Step]:
    """Half of it when users do something. `lease` in seconds: who stands still for longer may find another leader when
    it wakes."""
    moments = [step.at for step in steps]
    for at in (step.at for step in steps if step.act == "delete"):
        if rng.random() < 0.2:  # pods are seen to go, but not their job
            for number in range(replicas):
                yield Step(max(0.0, at - 0.1), "lag", f"op{number + 1}", ("jobs", rng.uniform(3, 25)))
    acts = ["kill", "stop", "cut", "compact", "outage", "freeze", "lag", "lag", "jump"]
    if replicas > 1:
        acts += ["freeze", "freeze"]
    chosen = rng.sample(acts, rng.randint(0, 4))
    if not delicate:
        chosen += rng.sample(["evict", "delete pod", "vanish", "vanish", "node"], rng.randint(0, 3))
    for act in chosen:
        for _ in range(rng.randint(1, 4)):
            at = rng.uniform(0, until) if rng.random() < 0.5 else rng.choice(moments) + rng.uniform(-0.2, 0.5)
            yield Step(max(0.0, at), act, f"op{rng.randint(1, replicas)}", _draw_value(rng, act, lease))


def _draw_value(rng: random.Random, act: str, lease: float) -> Any:
    match act:
        case "freeze":  # now, or as soon as it creates a child
            long = rng.random() < 0.75
            return lease * rng.uniform(1.2, 1.8) if long else rng.uniform(1, 8), rng.random() < 0.8
        case "lag":
            return rng.choice(("jobs", "jobs", "pods", "services")), rng.uniform(3, 25)
        case "outage":
            return rng.uniform(2, 15)
        case "jump":
            return rng.choice((-3600.0, -20.0, 20.0, 3600.0))
        case "node":
            return rng.uniform(5, 40)
    return None
