"""Small scenarios in which the operator is killed before and after every single write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.script import BACKOFF, DEADLINE, FAIL, REQUIRED, RUN, SUCCEED, JobPlan, Script, Step, replica_spec
from trainop.engine.extensions import INFRA_RESTART_LIMIT, RESTART_SCOPE, SERVICE_MODE
from trainop.engine.framework import Framework
from trainop.engine.parse import parse
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured

CALM_AT = 60.0
NAME = "j"


def scenarios(kind: str) -> Iterator[Script]:
    """The possible courses of a job, each in its simplest form."""
    framework = FRAMEWORKS[kind]
    roles = pick_roles(framework)
    last = (roles[-1].lower(), 0)
    failing = {last: (137,)}
    yield _script("success", _plan(framework, roles, SUCCEED))
    yield _script("restart", _plan(framework, roles, SUCCEED, cleanPodPolicy="All", attempts=failing))
    together = _plan(framework, roles, SUCCEED, cleanPodPolicy="All", attempts=failing)
    yield _script("restart together", replace(together, annotations={RESTART_SCOPE: "job", SERVICE_MODE: "leader"}))
    fragile = replace(_plan(framework, roles, RUN), annotations={INFRA_RESTART_LIMIT: "0"})
    yield replace(_script("loss", fragile), chaos=(Step(5.0, "evict"),))
    yield _script("time to live", _plan(framework, roles, SUCCEED, cleanPodPolicy="Running", ttlSecondsAfterFinished=3))
    yield _script("failure", replace(_plan(framework, roles, FAIL, cleanPodPolicy="All"), culprit=last))
    limited = _plan(framework, roles, BACKOFF, backoffLimit=1, attempts={last: (137, 137)})
    yield _script("back-off limit", limited)
    yield _script("deadline", _plan(framework, roles, DEADLINE, activeDeadlineSeconds=5))
    pause = (Step(3.0, "suspend", NAME), Step(8.0, "resume", NAME))
    yield _script("pause", _plan(framework, roles, SUCCEED, cleanPodPolicy="All"), *pause, hold=10.0)
    again = (Step(3.0, "delete", NAME, "Background"), Step(3.1, "create", NAME))
    yield _script("recreation", _plan(framework, roles, RUN), *again)
    scalable = next((role for role in roles if framework.roles[role].maximum is None), None)
    if scalable is not None:
        scale = (Step(3.0, "scale", NAME, (scalable, 2)), Step(8.0, "scale", NAME, (scalable, 1)))
        yield _script("scaling", _plan(framework, roles, RUN), *scale)


def pick_roles(framework: Framework) -> list[str]:
    """The fewest that make a valid job, and one more if that is allowed."""
    roles = list(framework.required_roles)
    for role in framework.roles:
        if len(roles) < 2 and role not in roles and _valid(framework, [*roles, role]):
            roles.append(role)
    return [role for role in framework.roles if role in roles]


def _valid(framework: Framework, roles: list[str]) -> bool:
    return not parse(framework, Unstructured(_plan(framework, roles, RUN).body())).errors


def _plan(framework: Framework, roles: list[str], goal: str, **policy: object) -> JobPlan:
    attempts = policy.pop("attempts", {})
    specs: Json = {role: replica_spec(framework, 1, "ExitCode") for role in roles}
    run_policy = {"cleanPodPolicy": "None", **policy}
    spec = {framework.replica_specs: specs, "runPolicy": run_policy, **REQUIRED.get(framework.kind, {})}
    return JobPlan(NAME, framework.kind, spec, goal, attempts)  # type: ignore[arg-type]


def _script(name: str, plan: JobPlan, *steps: Step, hold: float = 2.0) -> Script:
    all_steps = (Step(1.0, "create", NAME), *steps)
    return Script(f"{plan.kind} {name}", (plan,), all_steps, calm_at=CALM_AT, hold=hold)
