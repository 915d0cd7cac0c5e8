"""What a kind says of its jobs: when they run, succeed and fail, and which it refuses, found by trying."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from e2e.docs.samples import example, plain_job, table
from trainop.engine.framework import Framework, Tally
from trainop.engine.job import Job, Role
from trainop.engine.parse import parse
from trainop.runtime.objects.metadata import Json, Unstructured


def rules(framework: Framework) -> str:
    texts = framework.texts(parse(framework, Unstructured(example(framework)[1])))
    rows = [(shape, *probe(framework, job)) for shape, job in judged(framework)]
    said = [("Running", texts.running), ("Succeeded", texts.succeeded), ("Failed", texts.failed)]
    tolerant = " (but for workers of a TFJob with `enableDynamicWorker`)" if framework.kind == "TFJob" else ""
    heads = ("a job with", "runs while one is active of", "has succeeded with")
    prose = f"""
A replica that fails under `OnFailure` or `Always`, or under `ExitCode` with 128 or above, is restarted: the job has the
condition Restarting until it is back. Any other failure of any replica fails the job{tolerant}.

"""
    return (
        table(rows, *heads) + prose + table(((c, f"`{fill(framework, t)}`") for c, t in said), "condition", "message")
    )


def fill(framework: Framework, text: str) -> str:
    return text.format(kind=framework.kind, name="<name>", namespace="<namespace>", count="<number>", role="<type>")


def judged(framework: Framework) -> Iterator[tuple[str, Job]]:
    """The example's roles, and workers alone where that is a job."""
    types = [role.type for role in parse(framework, Unstructured(example(framework)[1])).roles]
    yield " and ".join(f"`{type_}`" for type_ in types), plain_job(framework, types)
    alone = plain_job(framework, ["Worker"])
    if types != ["Worker"] and not alone.errors:
        yield "`Worker` only", alone
    if "successPolicy" in framework.spec_fields:
        yield "`Worker` only, `successPolicy: AllWorkers`", plain_job(framework, ["Worker"], successPolicy="AllWorkers")
    if framework.kind == "MXJob":
        yield "`jobMode: MXTune`", plain_job(framework, [t for t in framework.roles if "Tuner" in t], jobMode="MXTune")
    if framework.kind == "PyTorchJob":
        yield "`Worker` only, `elasticPolicy`", plain_job(framework, ["Worker"], elasticPolicy={})


def probe(framework: Framework, job: Job) -> tuple[str, str]:
    """Which role makes the job run, and the least that makes it succeed, found by trying."""

    def reached(role: Role, tally: Tally) -> tuple[bool, bool]:
        others = {other.type: Tally() for other in job.roles}
        progress = framework.progress(job, {**others, role.type: tally})
        return progress.running, progress.succeeded

    runs, succeeds = [], []
    for role in job.roles:
        if reached(role, Tally(active=1))[0]:
            runs.append(f"`{role.type}`")
        least = {
            f"any of `{role.type}`": Tally(succeeded=1),
            f"the first of `{role.type}`": Tally(succeeded=1, first_completed=True),
            f"all of `{role.type}`": Tally(succeeded=role.replicas, first_completed=True),
        }
        found = [words for words, tally in least.items() if reached(role, tally)[1]]
        succeeds += [f"`{role.type}`" if role.replicas == 1 else found[0]] if found else []
    return " or ".join(runs), " or ".join(succeeds)


# Refusals -------------------------------------------------------------------------------------------------------------


def without(name: str) -> Callable[[Json, str], None]:
    return lambda spec, field: spec[field].pop(name)


def with_also(**roles: str) -> Callable[[Json, str], None]:
    """Roles that are copies of others."""
    return lambda spec, field: spec[field].update({new: copy.deepcopy(spec[field][old]) for new, old in roles.items()})


def with_fields(**fields: Any) -> Callable[[Json, str], None]:
    return lambda spec, _: spec.update(fields)


def in_role(name: str, **fields: Any) -> Callable[[Json, str], None]:
    return lambda spec, field: spec[field][name].update(fields)


def elastic_without_workers(spec: Json, field: str) -> None:
    del spec[field]["Worker"]
    spec["elasticPolicy"] = {}


def no_own_container(spec: Json, field: str) -> None:
    spec[field]["Worker"]["template"]["spec"]["containers"][0]["name"] = "main"


WRONG: dict[str, dict[str, Callable[[Json, str], None]]] = {
    "": {
        "a type that is none": with_also(Boss="Worker"),
        "no container of that name": no_own_container,
        "an unknown `restartPolicy`": in_role("Worker", restartPolicy="Sometimes"),
    },
    "TFJob": {
        "chiefs under both names": with_also(Master="Chief"),
        "an unknown `successPolicy`": with_fields(successPolicy="FirstWorker"),
    },
    "PyTorchJob": {
        "two masters": in_role("Master", replicas=2),
        "no worker": in_role("Worker", replicas=0),
        "an elastic policy without workers": elastic_without_workers,
        "both numbers of processes": with_fields(nprocPerNode="2", elasticPolicy={"nProcPerNode": 2}),
        "least above most": with_fields(elasticPolicy={"minReplicas": 3, "maxReplicas": 2}),
    },
    "XGBoostJob": {"no master": without("Master"), "two masters": in_role("Master", replicas=2)},
    "PaddleJob": {"least above most": with_fields(elasticPolicy={"minReplicas": 3, "maxReplicas": 2})},
    "JAXJob": {"a master": with_also(Master="Worker")},
}


def refusals(framework: Framework) -> str:
    """What validation says of jobs that differ from the example in one thing."""
    rows = []
    for what, spoil in {**WRONG[""], **WRONG.get(framework.kind, {})}.items():
        raw = copy.deepcopy(example(framework)[1])
        spoil(raw["spec"], framework.replica_specs)
        errors = parse(framework, Unstructured(raw)).errors
        assert errors, (framework.kind, what)
        rows.append((what, " ".join(f"`{error}`" for error in errors)))
    intro = (
        f"Such a job gets the condition Failed, reason `{framework.kind}FailedValidation`, and nothing is created.\n\n"
    )
    return intro + table(rows, "wrong", "message")
