"""MPIJobs in many states under the Go operators, then under ours, then under the Go operators again, on the real
kube-apiserver with the Job controller of kube-controller-manager.

Our operator records the transport of a job that has not finished, and labels its objects, so that its caches hold them.
It changes nothing else, and writes no event, no status and no pod. A finished job and its children are not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from e2e.peers import MPI_OPERATOR
from e2e.takeover.mpi_scenes import (
    ONCE,
    SCENES,
    VERSIONS,
    MpiScene,
    MpiStage,
    ends_evicted,
    fails,
    is_evicted,
    is_suspended,
    runs,
    succeeds,
)
from e2e.takeover.mpi_theatre import OTHER, MpiTheatre, definition_of
from e2e.takeover.observers import Write
from e2e.takeover.operators import need_mounts, need_peer
from e2e.takeover.test_takeover import UNDER_THEM, UNDER_US, broken_laws, differences
from e2e.takeover.theatre import NEW, OLD
from tests.server.process import Operator
from tests.server.world import Json
from trainop.kinds.mpi.transport import EXEC, SSH, TRANSPORT

TRAINING_OPERATOR = "training-operator"
Cast = list[tuple[MpiStage, MpiScene]]


def cast_of(stage: MpiStage, scenes: Iterable[MpiScene] = SCENES) -> Cast:
    return [
        (stage, replace(scene, name=scene.name + suffix))
        for scene in scenes
        if stage.transport in scene.transports
        for suffix in (UNDER_US, UNDER_THEM)
    ]


def play_past(cast: Cast) -> None:
    for stage, scene in cast:
        stage.create_scene(scene)
    for stage, scene in cast:
        for step in scene.past:
            step(stage, scene.name)


def play_future(cast: Cast, suffix: str) -> None:
    for stage, scene in cast:
        if scene.name.endswith(suffix):
            for step in scene.future:
                step(stage, scene.name)


# What the new operator may write --------------------------------------------------------------------------------------


ADDED = {"MPIJob": (), "Job": ("labels", "annotations", "finalizers")}
"""Kind -> metadata to which the new operator may add; the finalizer is for Jobs with a time to live."""


def essence(kind: str, each: Json) -> Json:
    """The object without what the new operator may add to it."""
    kept = {name: value for name, value in each.items() if name != "metadata" and (kind, name) != ("Role", "rules")}
    metadata = dict(each["metadata"])
    for name in ("resourceVersion", "managedFields", *ADDED.get(kind, ("labels", "annotations"))):
        metadata.pop(name, None)
    if kind == "MPIJob":
        annotations = {k: v for k, v in metadata.pop("annotations", {}).items() if k != TRANSPORT}
        metadata |= {"annotations": annotations} if annotations else {}
    return {**kept, "metadata": metadata}


def rights_of(role: Json) -> set[tuple[str, str, str]]:
    """Verb, resource and name; a right for all names is one for each pod in the other rules, too."""
    rules = role.get("rules") or []
    named = {name for rule in rules for name in rule.get("resourceNames") or ()}
    return {
        (verb, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or {"*", *named}
    }


def disturbances(before: dict[str, Json], after: dict[str, Json], cast: Cast) -> Iterator[str]:
    """What was changed that had to stay."""
    over = {f"{stage.namespace}/{scene.name}" for stage, scene in cast if scene.over}
    yield from (f"{name} is gone" for name in before.keys() - after.keys())
    yield from (f"{name} is new" for name in after.keys() - before.keys())
    for name in before.keys() & after.keys():
        kind, old, new = name.split()[0], before[name], after[name]
        labels = old["metadata"].get("labels", {})
        if old["metadata"]["uid"] != new["metadata"]["uid"]:
            yield f"{name} is another one"
        elif essence(kind, old) != essence(kind, new):
            yield f"{name}: {essence(kind, old)} -> {essence(kind, new)}"
        elif kind == "Role" and (more := rights_of(new) - rights_of(old)):
            yield f"{name} has got the rights {sorted(more)}"
        elif not labels.items() <= new["metadata"].get("labels", {}).items():
            yield f"{name} has lost labels"
        elif old == new:
            continue
        elif kind == "Pod" or any(name.split()[1].startswith(job) for job in over):
            yield f"{name} was written"


def refused(writes: Iterable[Write]) -> list[str]:
    """A create also shows whether the object exists. The rights of a deleted job are withdrawn at once, unless the
    garbage collector has been faster."""
    return [str(each) for each in writes if each.code >= 400 and not _is_expected(each)]


def _is_expected(write: Write) -> bool:
    return (write.verb, write.code) == ("create", 409) or (write.verb, write.resource, write.code) == (
        "patch",
        "roles",
        404,
    )


def repeated_events(writes: Iterable[Write]) -> list[str]:
    """Events of a job with the same reason. Those of a suspension may repeat, and no job is suspended twice."""
    seen: Counter[tuple[str, str]] = Counter()
    for write in writes:
        if write.resource == "events":
            job = write.body.get("involvedObject", {}).get("name")
            about = f"{write.name.split('/')[0]}/{job}" if job else write.name
            seen[about, write.body.get("reason", "the same again")] += 1
    return [f"{job}: {reason}, {count} times" for (job, reason), count in seen.items() if count > 1]


def broken_mpi_laws(theatre: MpiTheatre) -> list[str]:
    """As `broken_laws`, but ours removes the startTime of a job that is suspended, for either transport."""
    return [law for law in broken_laws(theatre) if not law.endswith("-> None")]


def take_over(theatre: MpiTheatre, operator: Operator, cast: Cast) -> None:
    """Starts our operator, and demands that nothing is disturbed."""
    before, mark = theatre.objects(), theatre.audit.end()
    operator.start()
    theatre.wait_settled(operator, NEW)
    writes = theatre.writes_of_ours(mark)
    assert refused(writes) == []
    reports = [write for write in writes if write.resource == "events" or write.resource.endswith("/status")]
    assert [f"{write}: {write.body}" for write in reports] == []
    assert list(disturbances(before, theatre.objects(), cast)) == []
    for stage, scene in cast:
        recorded = stage.job(scene.name)["metadata"].get("annotations", {}).get(TRANSPORT)
        assert recorded == (None if scene.over else stage.transport), scene.name


# Scenes ---------------------------------------------------------------------------------------------------------------


def test_mpi_operator_is_replaced_and_returns(mpi_theatre: MpiTheatre) -> None:
    theatre = mpi_theatre
    theatre.install_mpi(definition_of(MPI_OPERATOR))
    cast = cast_of(theatre.stage("mpi", SSH))
    old, new = theatre.mpi_operator(), theatre.new_mpi_operator()
    old.start()
    play_past(cast)
    theatre.audit.wait_quiet(OLD)
    before, mark = theatre.objects(), theatre.audit.end()
    theatre.install_ours()
    theatre.audit.wait_quiet(OLD)
    assert list(disturbances(before, theatre.objects(), [])) == [], "the CRD alone changes nothing"
    old.end()

    take_over(theatre, new, cast)
    rewrite_stored(theatre)
    play_future(cast, UNDER_US)
    theatre.audit.wait_quiet(NEW)
    writes = theatre.writes_of_ours(mark)
    assert refused(writes) == []
    assert repeated_events(writes) == []
    assert new.end() == 0

    versions = theatre.versions()
    old.start()
    theatre.audit.wait_quiet(OLD)
    assert differences(versions, theatre.versions()) == []
    play_future(cast, UNDER_THEM)
    assert broken_mpi_laws(theatre) == []


def rewrite_stored(theatre: MpiTheatre) -> None:
    """The last step of the migration: the jobs are stored as v1, and the CRD forgets v2beta1. Nothing follows."""
    before, mark = theatre.objects(), theatre.audit.end()
    path = f"/apis/{VERSIONS[EXEC]}/mpijobs"
    for job in theatre.api("GET", path).body["items"]:
        metadata = job["metadata"]
        metadata.pop("managedFields", None)  # as kubectl omits them
        one = f"/apis/{VERSIONS[EXEC]}/namespaces/{metadata['namespace']}/mpijobs/{metadata['name']}"
        answer = theatre.api("PUT", one, job)
        assert answer.status == 200, answer
    theatre.forget_stored("v2beta1")
    theatre.audit.wait_quiet(NEW)
    assert [str(write) for write in theatre.writes_of_ours(mark)] == []
    assert list(disturbances(before, theatre.objects(), [])) == []


def test_training_operator_is_replaced_and_returns(mpi_theatre: MpiTheatre) -> None:
    need_mounts()
    need_peer(TRAINING_OPERATOR)
    theatre = mpi_theatre
    theatre.install_mpi(definition_of(TRAINING_OPERATOR))
    cast = cast_of(theatre.stage("training", EXEC))
    old, new = theatre.training_operator(), theatre.new_operator()
    old.start()
    play_past(cast)
    theatre.audit.wait_quiet(OLD)
    mark = theatre.audit.end()
    theatre.install_ours()
    old.end()

    take_over(theatre, new, cast)
    play_future(cast, UNDER_US)
    theatre.audit.wait_quiet(NEW)
    writes = theatre.writes_of_ours(mark)
    assert refused(writes) == []
    assert repeated_events(writes) == []
    assert new.end() == 0

    before = theatre.versions()
    old.start()
    theatre.wait_settled(old, OLD)
    written = differences(before, theatre.versions())
    assert [each for each in written if not each.startswith("Role ")] == [], "it gives launchers all its rights again"
    play_future(cast, UNDER_THEM)
    assert broken_mpi_laws(theatre) == []


SHOWN = {"runs", "waits", "grown", "suspended", "stopped", "keeps", "failed", "foreign"}


def test_both_are_replaced_at_once(mpi_theatre: MpiTheatre) -> None:
    """Their CRDs exclude each other, so that ours is needed before the second one can come, with a namespace for each:
    either would take the jobs of the other for its own."""
    need_mounts()
    need_peer(TRAINING_OPERATOR)
    theatre = mpi_theatre
    theatre.install_mpi(definition_of(MPI_OPERATOR))
    ssh = theatre.stage("mpi", SSH)
    first = theatre.mpi_operator(f"--namespace={ssh.namespace}")
    first.start()
    shown = [scene for scene in SCENES if scene.name in SHOWN]
    cast = cast_of(ssh, shown)
    play_past(cast)
    with pytest.raises(AssertionError, match="storedVersions"):
        theatre.install_mpi(definition_of(TRAINING_OPERATOR))
    theatre.install_ours()
    exec_ = theatre.stage("training", EXEC)
    second = theatre.training_operator(f"--namespace={exec_.namespace}", user=OTHER)
    second.start()
    of_exec = cast_of(exec_, shown)
    play_past(of_exec)
    for operator, user in ((first, OLD), (second, OTHER)):
        theatre.audit.wait_quiet(user)
        operator.end()

    new, mark = theatre.new_operator(), theatre.audit.end()
    take_over(theatre, new, cast + of_exec)
    for suffix in (UNDER_US, UNDER_THEM):
        play_future(cast + of_exec, suffix)
    theatre.audit.wait_quiet(NEW)
    writes = theatre.writes_of_ours(mark)
    assert refused(writes) == []
    assert repeated_events(writes) == []
    assert broken_mpi_laws(theatre) == []


def test_a_job_with_an_evicted_worker_is_ended(mpi_theatre: MpiTheatre) -> None:
    """mpi-operator fails such a job without a completionTime, and its launcher goes on. Ours suspends the launcher."""
    theatre = mpi_theatre
    theatre.install_mpi(definition_of(MPI_OPERATOR))
    stage = theatre.stage("mpi", SSH)
    old, new = theatre.mpi_operator(), theatre.new_mpi_operator()
    old.start()
    evicted = MpiScene("evicted", past=(runs, is_evicted))
    play_past([(stage, evicted)])
    failed = stage.condition("Failed", evicted.name)
    assert "completionTime" not in stage.status(evicted.name)
    old.end()
    new.start()
    ends_evicted(stage, evicted.name)
    assert stage.condition("Failed", evicted.name) == failed


def test_the_crd_of_mpi_operator_stays(mpi_theatre: MpiTheatre) -> None:
    """Our operator runs with the CRD of mpi-operator, before ours is applied."""
    theatre = mpi_theatre
    theatre.install_mpi(definition_of(MPI_OPERATOR))
    stage = theatre.stage("mpi", SSH)
    cast = cast_of(stage, [MpiScene("done", past=(runs, succeeds), over=True), MpiScene("runs", future=(succeeds,))])
    old, new = theatre.mpi_operator(), theatre.new_mpi_operator()
    old.start()
    play_past(cast)
    theatre.audit.wait_quiet(OLD)
    old.end()
    take_over(theatre, new, cast)
    play_future(cast, UNDER_US)
    fresh = [
        (stage, MpiScene("fresh", past=(runs, is_suspended))),
        (stage, MpiScene("lost", run_policy=ONCE, past=(runs, fails))),
    ]
    play_past(fresh)
    assert new.end() == 0

    before = theatre.versions()
    theatre.install_ours()
    again = theatre.new_mpi_operator()
    mark = theatre.audit.end()
    again.start()
    theatre.wait_settled(again, NEW)
    assert [str(write) for write in theatre.writes_of_ours(mark)] == []
    assert differences(before, theatre.versions()) == []
    play_future(cast, UNDER_THEM)
    assert broken_mpi_laws(theatre) == []
