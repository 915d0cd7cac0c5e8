"""The sections of a page on Running, Succeeded and Failed and on validation, determined by evaluating sample jobs."""

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
    rows = [(shape, *probe(framework, job)) for shape, job in sample_jobs(framework)]
    said = [("Running", texts.running), ("Succeeded", texts.succeeded), ("Failed", texts.failed)]
    tolerant = " (except for workers of a TFJob with `enableDynamicWorker`)" if framework.kind == "TFJob" else ""
    heads = ("job with roles", "Running while a replica is active of", "Succeeded after success of")
    prose = f"""
A replica that fails under `OnFailure` or `Always`, or under `ExitCode` with exit code 128 or above, is restarted; until
it runs again, the job has the condition Restarting. Any other failure of a replica fails the job{tolerant}.

"""
    return (
        table(rows, *heads) + prose + table(((c, f"`{fill(framework, t)}`") for c, t in said), "condition", "message")
    )


def fill(framework: Framework, text: str) -> str:
    return text.format(kind=framework.kind, name="<name>", namespace="<namespace>", count="<number>", role="<type>")


def sample_jobs(framework: Framework) -> Iterator[tuple[str, Job]]:
    """Sample jobs with a description: the roles of the example, workers only if valid, and variants of the kind."""
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
    """Which roles make the job Running, and the minimal successes that make it Succeeded, by evaluation."""

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


def with_copies(**roles: str) -> Callable[[Json, str], None]:
    """Adds roles that are copies of others."""
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


INVALID: dict[str, dict[str, Callable[[Json, str], None]]] = {
    "": {
        "an unknown replica type": with_copies(Boss="Worker"),
        "no container with the kind's name": no_own_container,
        "an unknown `restartPolicy`": in_role("Worker", restartPolicy="Sometimes"),
    },
    "TFJob": {
        "both `Chief` and `Master`": with_copies(Master="Chief"),
        "an unknown `successPolicy`": with_fields(successPolicy="FirstWorker"),
    },
    "PyTorchJob": {
        "two masters": in_role("Master", replicas=2),
        "no worker": in_role("Worker", replicas=0),
        "an elastic policy without workers": elastic_without_workers,
        "processes per node given twice": with_fields(nprocPerNode="2", elasticPolicy={"nProcPerNode": 2}),
        "minimum above maximum": with_fields(elasticPolicy={"minReplicas": 3, "maxReplicas": 2}),
    },
    "XGBoostJob": {"no master": without("Master"), "two masters": in_role("Master", replicas=2)},
    "PaddleJob": {"minimum above maximum": with_fields(elasticPolicy={"minReplicas": 3, "maxReplicas": 2})},
    "JAXJob": {"a master": with_copies(Master="Worker")},
}


def refusals(framework: Framework) -> str:
    """The validation messages for jobs that differ from the example in one respect."""
    rows = []
    for what, break_job in {**INVALID[""], **INVALID.get(framework.kind, {})}.items():
        raw = copy.deepcopy(example(framework)[1])
        break_job(raw["spec"], framework.replica_specs)
        errors = parse(framework, Unstructured(raw)).errors
        assert errors, (framework.kind, what)
        rows.append((what, " ".join(f"`{error}`" for error in errors)))
    intro = (
        f"An invalid job gets the condition Failed with reason `{framework.kind}FailedValidation`; no pods or services "
        "are created.\n\n"
    )
    return intro + table(rows, "invalid job", "message")
