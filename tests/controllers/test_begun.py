"""Running jobs whose spec is invalid, by an edit or because an earlier operator accepted it: they continue."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.controllers.kinds import KINDS, SHAPES, make, running
from tests.engine.builders import manifest_of, replica_created
from tests.engine.world import World
from trainop.engine.actions import Plan
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.parse import parse
from trainop.engine.plan import plan
from trainop.engine.readings import READINGS, Effect, find_reading
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.field_error import FieldError
from trainop.runtime.objects.metadata import Json, Unstructured


class Case(NamedTuple):
    name: str
    spoil: Callable[[Json, Json], None]
    """Makes the spec invalid in place; receives the spec and its last role, which does not lead if there are
    several."""
    effect: Effect = Effect.NONE
    kinds: tuple[str, ...] = ("TFJob", "PyTorchJob", "JAXJob")


def at(*path: Any, value: Any) -> Callable[[Json, Json], None]:
    """Set the value at this path of the spec."""

    def spoil(spec: Json, _role: Json) -> None:
        place: Any = spec
        for key in path[:-1]:
            place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
        place[path[-1]] = value

    return spoil


def of_role(*path: Any, value: Any) -> Callable[[Json, Json], None]:
    def spoil(_spec: Json, role: Json) -> None:
        at(*path, value=value)(role, role)

    return spoil


def replicas_of(spec: Json) -> tuple[str, Json]:
    return next((name, value) for name, value in spec.items() if name.endswith("ReplicaSpecs"))


def in_map(change: Callable[[Json], Any]) -> Callable[[Json, Json], None]:
    return lambda spec, _role: change(replicas_of(spec)[1])


def note(name: str, value: str) -> Callable[[Json, Json], None]:
    """Set an annotation. It is passed through the spec, from which `spoilt` moves it to the metadata."""
    return at("annotations", ANNOTATION_PREFIX + name, value=value)


def drop_container(_spec: Json, role: Json) -> None:
    role["template"]["spec"]["containers"][0]["name"] = "other"


POD = ("template", "spec")
MAIN = (*POD, "containers", 0)
RUN = "runPolicy"

CASES = [
    Case("clean policy in wrong case", at(RUN, "cleanPodPolicy", value="running")),
    Case("clean policy of an old operator", at(RUN, "cleanPodPolicy", value="Succeeded")),
    Case("time to live below 0", at(RUN, "ttlSecondsAfterFinished", value=-1)),
    Case("time to live no number", at(RUN, "ttlSecondsAfterFinished", value="1h")),
    Case("deadline below 0", at(RUN, "activeDeadlineSeconds", value=-1)),
    Case("back-off limit below 0", at(RUN, "backoffLimit", value=-1)),
    Case("suspend no flag", at(RUN, "suspend", value="yes")),
    Case("manager no text", at(RUN, "managedBy", value=7)),
    Case("run policy no object", at(RUN, value="x")),
    Case("restart scope in wrong case", note("restart-scope", "Pod")),
    Case("restart scope unknown", note("restart-scope", "everything")),
    Case("service mode unknown", note("service-mode", "none")),
    Case("infra restart limit no number", note("infra-restart-limit", "many")),
    Case("success policy of an old operator", at("successPolicy", value="ChiefWorker"), kinds=("TFJob",)),
    Case("dynamic worker no flag", at("enableDynamicWorker", value="false"), kinds=("TFJob",)),
    Case("processes per node", at("nprocPerNode", value="-1"), kinds=("PyTorchJob",)),
    Case("elastic policy no object", at("elasticPolicy", value="x"), kinds=("PyTorchJob", "PaddleJob")),
    Case("elastic limits", at("elasticPolicy", "minReplicas", value=-1), kinds=("PaddleJob",)),
    Case("job mode no text", at("jobMode", value=7), kinds=("MXJob",)),
    Case("extra role", in_map(lambda roles: roles.update(Foo=copy.deepcopy(roles["Worker"]))), kinds=tuple(KINDS)),
    Case("extra role unreadable", in_map(lambda roles: roles.update(Foo=7)), kinds=tuple(KINDS)),
    Case("role given twice", in_map(lambda roles: roles.update(wORKER=7)), kinds=tuple(KINDS)),
    Case("two leading roles", in_map(lambda roles: roles.update(Master=roles["Chief"])), kinds=("TFJob",)),
    Case("too many of a role", in_map(lambda roles: roles["Master"].update(replicas=3)), kinds=("PyTorchJob",)),
    Case("restart policy unknown", of_role("restartPolicy", value="onfailure"), kinds=("TFJob", "PyTorchJob")),
    Case("image empty", of_role(*MAIN, "image", value="")),
    Case("image no text", of_role(*MAIN, "image", value=7)),
    Case("template no object", of_role("template", value=7), Effect.ROLE, tuple(KINDS)),
    Case("template missing", of_role("template", value=None), Effect.ROLE, tuple(KINDS)),
    Case("template metadata no object", of_role("template", "metadata", value=7), Effect.ROLE, tuple(KINDS)),
    Case(
        "template labels no object",
        of_role("template", "metadata", "labels", value=[1]),
        Effect.ROLE,
    ),
    Case("template annotations no object", of_role("template", "metadata", "annotations", value=7), Effect.ROLE),
    Case("pod no object", of_role(*POD, value=7), Effect.ROLE),
    Case("init containers no list", of_role(*POD, "initContainers", value=7), Effect.ROLE),
    Case("volumes no list", of_role(*POD, "volumes", value=7), Effect.ROLE),
    Case("no containers", of_role(*POD, "containers", value=[]), Effect.ROLE),
    Case("containers no list", of_role(*POD, "containers", value=7), Effect.ROLE),
    Case("container no object", of_role(*MAIN, value=7), Effect.ROLE),
    Case("container without name", of_role(*MAIN, "name", value=None), Effect.ROLE),
    Case("container of another name", drop_container, Effect.ROLE),
    Case("variables no list", of_role(*MAIN, "env", value=7), Effect.ROLE),
    Case("mounts no list", of_role(*MAIN, "volumeMounts", value=7), Effect.ROLE),
    Case("ports no list", of_role(*MAIN, "ports", value=7), Effect.ROLE),
    Case("port no object", of_role(*MAIN, "ports", value=[7]), Effect.ROLE),
    Case("port without number", of_role(*MAIN, "ports", value=[{}]), Effect.ROLE),
    Case("replicas no number", of_role("replicas", value="two"), Effect.JOB, tuple(KINDS)),
    Case("replicas too many together", of_role("replicas", value=100_000), Effect.JOB, ("PyTorchJob", "PaddleJob")),
    Case("replicas beyond measure", of_role("replicas", value=10**9), Effect.JOB, tuple(KINDS)),
]


def spoilt(job: Json, case: Case) -> None:
    """Apply the invalid edit to the job, with annotations moved to its metadata and without shared role values."""
    spec = job["spec"] = json.loads(json.dumps(job["spec"]))
    case.spoil(spec, list(replicas_of(spec)[1].values())[-1])
    job["metadata"].setdefault("annotations", {}).update(spec.pop("annotations", {}))
    job["metadata"]["generation"] += 1


def begun(case: Case, kind: str, **fields: Any) -> World:
    """A job that becomes invalid while all its pods run."""
    world = running(kind, **fields)
    spoilt(world.raw, case)
    world.settle()
    return world


EACH = pytest.mark.parametrize(
    ("case", "kind"), [pytest.param(case, kind, id=f"{case.name}-{kind}") for case in CASES for kind in case.kinds]
)


def warned(world: World) -> int:
    return len(world.event_messages(f"{world.framework.kind}FailedValidation"))


@EACH
def test_it_succeeds_with_its_pods_and_reports_the_error_once(case: Case, kind: str):
    world = begun(case, kind)
    assert world.is_true("Running")
    for _ in range(3):
        world.step()
    assert warned(world) == 1
    job = world.raw
    for name in list(world.pods):
        world.end(name, 0)
    for _ in range(5):  # a negative time to live would delete the job soon
        if world.job is not None:
            job = world.job
            world.step()
    alone = len(SHAPES[kind]) == 1
    expected = (
        "Running" if case.effect is Effect.JOB and alone else "Succeeded"
    )  # the required number of successes is unknown
    assert [(entry["type"], entry["status"]) for entry in job["status"]["conditions"]][-1] == (expected, "True")


@EACH
def test_it_fails_with_its_pods(case: Case, kind: str):
    world = begun(case, kind, policy="Never", run={"activeDeadlineSeconds": 60})
    leader = next(iter(SHAPES[kind])).lower()
    world.end(f"j-{leader}-0", 1)
    for _ in range(3):
        if world.job is not None:
            status = world.status
            world.step()
    status = world.status if world.job is not None else status
    assert [(entry["type"], entry["status"]) for entry in status["conditions"]][-1] == ("Failed", "True")


@EACH
def test_an_invalid_field_blocks_what_the_table_says(case: Case, kind: str):
    """A failed pod of the invalid role is recreated if possible; pods of other roles always are."""
    world = begun(case, kind, policy="OnFailure", run={"backoffLimit": 1})
    role = list(SHAPES[kind])[-1].lower()
    before = sorted(world.pods)
    world.end(f"j-{role}-0", 1)
    world.settle()
    world.reap()
    world.pass_time(400)
    world.settle()
    assert (world.pods.get(f"j-{role}-0", {}).get("status", {}).get("phase") == "Failed") is (
        case.effect is not Effect.NONE
    )
    assert set(before) <= set(world.living()), "no pod is lost"
    first = next(iter(SHAPES[kind])).lower()
    if case.effect is Effect.ROLE and first != role:
        world.end(f"j-{first}-0", 1)
        world.settle()
        world.reap()
        world.settle()
        assert world.pods[f"j-{first}-0"]["status"]["phase"] == "Pending"


@EACH
def test_a_job_that_never_began_fails_for_the_same(case: Case, kind: str):
    job = make(kind)
    spoilt(job, case)
    world = World(job, framework=FRAMEWORKS[kind])
    world.step()
    assert world.conditions[-1] == ("Failed", "True", f"{kind}FailedValidation")
    assert world.pods == {}


@EACH
def test_resumed_it_goes_on_too(case: Case, kind: str):
    if case.name in {"suspend no flag", "run policy no object"}:
        return  # this edit prevents suspension
    world = running(kind)
    world.spec.setdefault("runPolicy", {})["suspend"] = True
    world.settle()
    world.reap()
    world.settle()
    world.spec["runPolicy"]["suspend"] = False
    spoilt(world.raw, case)
    world.settle()
    assert warned(world) == 1
    assert world.living() or case.effect is Effect.JOB or (case.effect is Effect.ROLE and len(SHAPES[kind]) == 1)
    assert not world.is_true("Failed")


def test_every_row_of_the_table_has_a_case():
    seen = set()
    for case, kind in [(each, kind) for each in CASES for kind in each.kinds]:
        job = make(kind)
        spoilt(job, case)
        seen |= rows_of(kind, job)
    seen |= rows_of("JAXJob", make("JAXJob", name="J"))
    seen |= rows_of("XGBoostJob", make("XGBoostJob", {"Worker": 1}))
    for spec in (7, {}, {"jaxReplicaSpecs": 7}, {"jaxReplicaSpecs": {"Worker": 7}}):
        seen |= rows_of("JAXJob", make("JAXJob") | {"spec": spec})
    assert [row.path for row in READINGS if row not in seen] == []


def test_a_field_that_is_not_in_the_table_blocks_nothing():
    """Kinds defined by users may have such fields (docs/new-kind.md)."""
    reading = find_reading("myReplicaSpecs", FieldError("spec.peers[3]", "Invalid value", "must be an object"))
    assert reading.effect is Effect.NONE


def rows_of(kind: str, job: Json) -> set[Any]:
    framework = FRAMEWORKS[kind]
    return {find_reading(framework.replica_specs, error) for error in parse(framework, Unstructured(job)).errors}


@pytest.mark.parametrize(
    "spec", [7, {}, {"jaxReplicaSpecs": 7}, {"jaxReplicaSpecs": {}}, {"jaxReplicaSpecs": {"Worker": 7}}]
)
def test_an_unreadable_spec_decides_nothing_but_keeps_its_deadline(spec: Any):
    world = running("JAXJob", run={"activeDeadlineSeconds": 60})
    started = copy.deepcopy(world.status)
    policy = world.spec["runPolicy"]
    world.raw["spec"] = spec | {"runPolicy": policy} if isinstance(spec, dict) else spec
    for name in ("j-worker-0", "j-worker-1"):
        world.end(name, 0)
    world.settle()
    assert not world.is_true("Succeeded")
    assert len(world.pods) == 3
    assert set(started["replicaStatuses"]) <= set(world.status["replicaStatuses"])
    world.pass_time(60)
    world.settle()
    assert world.is_true("Failed") is isinstance(spec, dict)


@pytest.mark.parametrize(
    ("kind", "role"), [("PyTorchJob", "Master"), ("PyTorchJob", "Worker"), ("XGBoostJob", "Master")]
)
def test_pods_of_a_role_that_was_misspelt_are_kept_and_decide_nothing_by_their_absence(kind: str, role: str):
    world = running(kind)
    specs = replicas_of(world.spec)[1]
    kept = sorted(world.pods)
    specs["Mispelt"] = specs.pop(role)
    world.settle()
    assert world.living() == kept
    for name in kept:
        if role.lower() not in name:
            world.end(name, 0)
    world.settle()
    assert not world.is_true("Succeeded"), "it is unknown whether the other replicas decide"
    specs[role] = specs.pop("Mispelt")
    for name in kept:
        world.end(name, 0)
    world.settle()
    assert world.is_true("Succeeded")


def test_manifests_are_built_whatever_is_invalid():
    """Two invalid edits at a time, in any running job."""
    for kind in KINDS:
        cases = [case for case in CASES if kind in case.kinds]
        for one, other in itertools.chain(zip(cases, cases[7:], strict=False), zip(cases[11:], cases, strict=False)):
            world = running(kind)
            spoilt(world.raw, one)
            try:
                spoilt(world.raw, other)
            except (AttributeError, TypeError, IndexError, LookupError):
                continue  # the first edit removed the target of the second
            world.pods.clear()
            world.services.clear()
            made: Plan = plan(world.framework, world.snapshot())
            for action in made.actions:
                if replica_created(action):
                    assert manifest_of(action)
