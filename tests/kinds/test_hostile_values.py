"""Hostile values in every field that a kind has: none of them becomes part of a script, a file, a name, a selector, a
label or a command that the operator makes.

The fields are those of the CRDs, so that a new field is tested as soon as it has a schema. A value is found again by a
mark in its text, wherever it arrives in the manifests that a plan writes. It may arrive as data: at the place of a pod
that it was given for, as the value of a variable of the user's own containers, and in the few fields of other APIs that
`DATA` lists, whose values the API server checks.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import json
import pkgutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trainop.engine
import trainop.kinds
from tests.controllers.test_hostile import rich
from tests.engine.builders import manifest_of
from tests.engine.world import World
from tests.kinds.dijob_world import DiWorld, dijob
from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from trainop.engine.actions import (
    Action,
    Ensure,
    Patch,
    Plan,
)
from trainop.engine.extensions import ANNOTATION_PREFIX
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.schema.crd import crd
from trainop.engine.seen import Options
from trainop.engine.steps.companions import FINGERPRINT
from trainop.kinds.dijob.crd import dijob_crd
from trainop.kinds.mpi.crd import mpi_crd
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

MARK = "zq9x"
"""Part of every text that is tried; nothing else contains it."""

TEXTS = (
    f"{MARK}; touch /tmp/evil #",
    f"$({MARK})",
    f"`{MARK}`",
    f"x\n{MARK} slots=99\n",
    f"' {MARK} \" \\",
    f"../../{MARK}",
    f"-{MARK}",
    f"{MARK}=1,b=2",
    f"{MARK}\x00\u202eü🚀",
    MARK + "a" * 2**20,
)
VALUES: tuple[Any, ...] = (
    *TEXTS,
    [TEXTS[0]],
    {MARK: TEXTS[0]},
    [[{"name": TEXTS[0]}]],
    [{"name": MARK, "value": "\n"}],
)
STRANGE: tuple[Any, ...] = (None, [], {}, "", 0, -1, 2**70, 1.5, True)
"""Have no mark: they must only do no harm."""

Path = tuple[Any, ...]

DATA: dict[str, tuple[Path, ...]] = {
    "PodGroup": (
        ("spec", "queue"),
        ("spec", "priorityClassName"),
        ("spec", "minResources"),
        ("metadata", "annotations"),
    ),
    "HorizontalPodAutoscaler": (("spec", "metrics"),),
    "Service": (("spec", "ports"),),
}
"""Where values arrive as data of another API, unchanged. Names of ports are those of the template, and the API server
refuses pod and Service alike."""

OF_DIJOB: tuple[Path, ...] = (("spec", "priorityClassName"), ("spec", "volumes"))
"""Fields of a DIJob that are those of its pods."""


# Jobs and their fields ------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A kind of job: a valid one with a value in every field, and the schema of its spec."""

    job: Json
    schema: Json


def schema_of(definition: Json) -> Json:
    """The schema of the spec."""
    found: Json = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def mpi(transport: str) -> Json:
    template = {"serviceAccountName": "mine"} if transport == "exec" else {}
    fields: Json = {"slotsPerWorker": 2, "mainContainer": "c", "sshAuthMountPath": "/k", "mpiImplementation": "Intel"}
    return mpi_job(launcher=replicas(1, template=template), transport=transport, run={"suspend": False}, **fields)


def unfinished(kind: str) -> Json:
    job = rich(kind)
    job.pop("status")
    return job


CASES = {
    **{kind: Case(unfinished(kind), schema_of(crd(framework))) for kind, framework in FRAMEWORKS.items()},
    "MPIJob by exec": Case(mpi("exec"), schema_of(mpi_crd())),
    "MPIJob by ssh": Case(mpi("ssh"), schema_of(mpi_crd())),
    "DIJob": Case(dijob(volumes=[{"name": "v"}], replicas=True, priorityClassName="p"), schema_of(dijob_crd())),
}


def known_annotations() -> set[str]:
    """All annotations of the operator, by the constants of the modules."""
    found: set[str] = set()
    for package in (trainop.engine, trainop.kinds):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(module.name)).values()
            found |= {each for each in values if isinstance(each, str) and each.startswith(ANNOTATION_PREFIX)}
    return found - {ANNOTATION_PREFIX, ANNOTATION_PREFIX + "mpi-transport"}


def fields_of(schema: Json, value: object) -> Iterator[Path]:
    """The paths of all fields that a schema has; those of maps and lists by the entries of `value`."""
    for name, inner in schema.get("properties", {}).items():
        yield (name,)
        below = value.get(name) if isinstance(value, dict) else None
        yield from ((name, *path) for path in fields_of(inner, below))
    if isinstance(inner := schema.get("additionalProperties"), dict):
        for name in value if isinstance(value, dict) else ("new",):
            yield (name,)
            yield from (
                (name, *path) for path in fields_of(inner, value.get(name) if isinstance(value, dict) else None)
            )
    if "items" in schema:
        yield (0,)
        first = value[0] if isinstance(value, list) and value else None
        yield from ((0, *path) for path in fields_of(schema["items"], first))


def paths(case: Case) -> list[Path]:
    """Every field of the spec, a key of every map, and every annotation."""
    spec = [("spec", *path) for path in fields_of(case.schema, case.job["spec"])]
    keys = [("spec", f"{MARK}; evil"), ("metadata", "annotations", f"{MARK}/evil")]
    keys += [(*path, f"{MARK}; evil") for path in spec if isinstance(find(case.job, path), dict)]
    return [*spec, *keys, *(("metadata", "annotations", name) for name in sorted(known_annotations()))]


def find(value: Any, path: Path) -> Any:
    """The value at a path; None if there is none."""
    for key in path:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return None
    return value


def spoil(job: Json, path: Path, value: Any) -> None:
    """Puts the value there, with whatever is missing on the way."""
    place: Any = job
    for key, following in itertools.pairwise(path):
        missing: Any = [] if isinstance(following, int) else {}
        if isinstance(place, list):
            if not place:
                place.append(missing)
            place = place[0]
        elif isinstance(place, dict):
            if not isinstance(place.get(key), dict | list):
                place[key] = missing
            place = place[key]
    last = path[-1]
    if isinstance(place, list):
        place[:1] = [value]
    elif isinstance(place, dict):
        place[last] = value


# What is written ------------------------------------------------------------------------------------------------------


def world_of(name: str, job: Json, *, gang: bool) -> World:
    options = Options(gang=choose_scheduler("volcano") if gang else None)
    if name == "DIJob":
        return DiWorld(job, options=options)
    if name.startswith("MPIJob"):
        return MpiWorld(job, options=options, ssh=name.endswith("ssh"))
    return World(job, framework=FRAMEWORKS[name], options=options)


def plan_of(world: World) -> Plan:
    """The next plan, which is not carried out."""
    carry_out = world.carry_out
    world.carry_out = lambda made: None  # type: ignore[method-assign]
    try:
        return world.step()
    finally:
        world.carry_out = carry_out  # type: ignore[method-assign]


def begun(name: str, job: Json, *, gang: bool) -> World:
    """A job that runs, whose pods have just been lost, so that all of them are made again."""
    world = world_of(name, job, gang=gang)
    for _ in range(6):
        world.step()
        if world.group is not None:
            world.group["status"] = {"phase": "Inqueue"}
    assert world.status
    for held in (world.pods, world.services, *world.companions.values()):
        held.clear()
    return world


def manifests_of(actions: tuple[Action, ...]) -> Iterator[Json]:
    for action in actions:
        match action:
            case Ensure():
                yield manifest_of(action)
            case Patch():
                yield {"kind": action.resource.kind, **action.body}


def arrivals(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Where the mark is: the path and the text. A key counts as text at its own path."""
    if isinstance(value, str):
        if MARK in value:
            yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if MARK in key:
                yield (*path, key), key
            yield from arrivals(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from arrivals(inner, (*path, index))


def templates(job: Json) -> Iterator[Json]:
    """All pod templates of the job."""
    spec = job.get("spec")
    for name, section in spec.items() if isinstance(spec, dict) else ():
        for each in (section, *(section.values() if isinstance(section, dict) else ())):
            template = each.get("template") if isinstance(each, dict) else None
            if isinstance(template, dict):
                yield template
        del name


def is_as_given(job: Json, path: Path, text: str) -> bool:
    """Whether the text was given for this very place of a pod: it is at the same path of a template."""
    if path[:2] in {("metadata", "name"), ("metadata", "namespace"), ("metadata", "ownerReferences")}:
        return False
    for template in templates(job):
        found = find(template, path)
        if found == text or (path[-1] == text and text in (find(template, path[:-1]) or {})):
            return True
    return False


def is_variable(job: Json, pod: Json, path: Path, text: str) -> bool:
    """Whether the text is in the value of a variable of a container of the user, and there, if it is JSON, as one
    string."""
    if path[0] != "spec" or path[-1] != "value" or "env" not in path:
        return False
    names = {find(template, ("spec", path[1], path[2], "name")) for template in templates(job)}
    if find(pod, (*path[:3], "name")) not in names:
        return False
    if text.startswith("{"):
        assert any(MARK in str(each) for _, each in arrivals(json.loads(text)))
    return True


def misplaced(job: Json, manifest: Json) -> Iterator[str]:
    """The arrivals that are neither as given nor data."""
    kind = manifest["kind"]
    is_job = kind == "Job"
    pod = find(manifest, ("spec", "template")) if is_job else manifest
    for path, text in arrivals(manifest):
        inner = path[2:] if is_job and path[:2] == ("spec", "template") else path
        if any(path[: len(each)] == each for each in DATA.get(kind, ())):
            continue
        if kind in {"Pod", "Job"} and (is_as_given(job, inner, text) or is_variable(job, pod, inner, text)):
            continue
        if kind in {"Pod", "Job"} and inner[-1] == "mountPath" and text == find(job, ("spec", "sshAuthMountPath")):
            continue
        if any(
            path[: len(each)] == each and MARK in str(find(job, each)) for each in OF_DIJOB if job["kind"] == "DIJob"
        ):
            continue
        yield f"{kind} {path}: {text[:80]!r}"


def check(job: Json, made: Plan, where: object) -> int:
    """Fails for a value that arrives where it must not; returns how many manifests there were."""
    manifests = list(manifests_of(made.actions))
    for manifest in manifests:
        found = list(misplaced(job, manifest))
        assert not found, f"{where}: {found[:3]}"
    return len(manifests)


# The tests ------------------------------------------------------------------------------------------------------------


def values_for(path: Path, number: int) -> Iterator[Any]:
    """Some of the values, others for the next field. Metadata has texts only, as the API server sees to."""
    tried = (TEXTS[0], VALUES[number % len(VALUES)], VALUES[-number % len(VALUES)], STRANGE[number % len(STRANGE)])
    return (each for each in tried if isinstance(each, str) or path[0] != "metadata")


every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_a_hostile_value_arrives_in_no_script_name_or_command(name: str):
    """Each field with several values, in a new job and in one that has begun, with and without gang scheduling."""
    case, counts = CASES[name], [0, 0]
    worlds = {gang: begun(name, copy.deepcopy(case.job), gang=gang) for gang in (False, True)}
    for number, path in enumerate(paths(case)):
        gang = bool(number % 2)
        running = worlds[gang]
        for value in values_for(path, number):
            job = copy.deepcopy(case.job)
            spoil(job, path, value)
            counts[0] += check(job, plan_of(world_of(name, job, gang=gang)), (path, value))
            later = {**copy.deepcopy(running.raw), "spec": job["spec"]}
            later["metadata"]["annotations"] |= job["metadata"].get("annotations") or {}
            running.job, before = later, running.job
            counts[1] += check(later, plan_of(running), ("begun", path, value))
            running.job = before
    assert min(counts) > len(paths(case)), "most jobs go on"


@every_case
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_several_hostile_values_at_once(name: str, data: st.DataObject):
    case = CASES[name]
    texts = st.builds("{}{}{}".format, st.text(max_size=8), st.just(MARK), st.text(max_size=8))
    chosen = data.draw(st.lists(st.tuples(st.sampled_from(paths(case)), texts | st.sampled_from(VALUES)), max_size=5))
    job = copy.deepcopy(case.job)
    for path, value in chosen:
        if path[0] != "metadata" or isinstance(value, str):
            spoil(job, path, copy.deepcopy(value))
    if not isinstance(job["spec"], dict):
        return
    check(job, plan_of(world_of(name, job, gang=True)), chosen)
    running = begun(name, copy.deepcopy(case.job), gang=True)
    running.job = {**running.raw, "spec": job["spec"]}
    check(running.raw, plan_of(running), chosen)


def test_the_fields_are_found():
    assert {FINGERPRINT} < known_annotations()
    for name, case in CASES.items():
        found = paths(case)
        assert any("template" in path and "serviceAccountName" in path for path in found), name
        assert len(found) > 50, name
    assert ("spec", "mainContainer") in paths(CASES["MPIJob by exec"])
    assert ("spec", "sshAuthMountPath") in paths(CASES["MPIJob by ssh"])
    assert ("spec", "elasticPolicy", "rdzvConf", 0, "key") in paths(CASES["PyTorchJob"])
