"""Jobs with gang scheduling under training-operator, then under our operator, then under the old one again.

The test plays the scheduler: it writes the phases of Volcano's PodGroups.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from e2e.cluster.build import module_folder
from e2e.cluster.places import ClusterError
from e2e.peers import PEERS
from e2e.takeover.scenes import Scene, Stage, Step, is_suspended, restarts, resumes, runs, stays_suspended, succeeds
from e2e.takeover.test_takeover import broken_laws, differences
from e2e.takeover.theatre import NEW, OLD, Theatre
from tests.server.world import MERGE, Json
from trainop.engine.gang_scheduler import PLUGIN_GROUPS, VOLCANO_GROUPS
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Resource

KINDS = ("PyTorchJob", "TFJob", "XGBoostJob")
# All limits have requests: for minResources ours counts a limit without one, training-operator does not.
RESOURCES: Json = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
QUEUE = {"queue": "default"}
"""Volcano's own webhook sets the queue of PodGroups, which 1.7 leaves empty."""
QUEUED = "/queued-"
"""Part of the names of jobs that wait for their PodGroup: training-operator writes their status every second."""
POLICY: Json = {"minAvailable": 2, "scheduleTimeoutSeconds": 30, "priorityClass": "high", "queue": "q"}


def volcano_definition() -> Json:
    """As much of Volcano's CRD as matters here; the module of its API does not contain it."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": VOLCANO_GROUPS.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
    }
    names = {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{VOLCANO_GROUPS.group}"},
        "spec": {"group": VOLCANO_GROUPS.group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def plugins_definition() -> Json:
    try:
        folder = module_folder(PEERS["training-operator"].program, "sigs.k8s.io/scheduler-plugins")
    except ClusterError as error:
        pytest.skip(str(error))
    crd: Json = yaml.safe_load((folder / "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml").read_text())
    return crd


SCHEDULERS = {
    "volcano": (VOLCANO_GROUPS, volcano_definition),
    "my-scheduler": (PLUGIN_GROUPS, plugins_definition),
}


def path_of(groups: Resource, stage: Stage, name: str) -> str:
    return groups.path(stage.namespace, name)


def admits(groups: Resource) -> Step:
    """The scheduler finds room for the job, which then runs."""

    def step(stage: Stage, name: str) -> None:
        path = path_of(groups, stage, name)
        stage.wait(lambda: stage.try_to("GET", path).status == 200, f"the PodGroup of {name}")
        stage.ask("PATCH", f"{path}/status", {"status": {"phase": "Running"}}, MERGE)
        runs(stage, name)

    return step


def has_no_group(groups: Resource) -> Step:
    def step(stage: Stage, name: str) -> None:
        stage.wait(lambda: stage.try_to("GET", path_of(groups, stage, name)).status == 404, f"no PodGroup of {name}")

    return step


def waits_for_room(groups: Resource) -> Step:
    def step(stage: Stage, name: str) -> None:
        path = path_of(groups, stage, name)
        stage.wait(lambda: stage.try_to("GET", path).status == 200, f"the PodGroup of {name}")
        if groups == VOLCANO_GROUPS:
            stage.settle()
            assert not stage.pods_of(name)
        else:
            runs(stage, name)

    return step


def scenes(groups: Resource) -> list[Scene]:
    admitted, gone = admits(groups), has_no_group(groups)
    return [
        Scene("runs", past=(admitted,), future=(succeeds, gone)),
        Scene("policy", run_policy={"schedulingPolicy": POLICY}, past=(admitted,), future=(is_suspended, gone)),
        Scene("retried", "ExitCode", past=(admitted, restarts), future=(restarts,)),
        Scene("done", past=(admitted, succeeds, gone)),
        Scene("stopped", past=(admitted, is_suspended, gone), future=(_resumes(groups), succeeds, gone)),
        Scene("suspended", run_policy={"suspend": True}, past=(stays_suspended,)),
        Scene("queued", past=(waits_for_room(groups),), future=(admitted, succeeds)),
    ]


def _resumes(groups: Resource) -> Step:
    def step(stage: Stage, name: str) -> None:
        stage.patch_job({"runPolicy": {"suspend": False}}, name)
        admits(groups)(stage, name)
        resumes(stage, name)

    return step


def of_jobs(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("PodGroup")]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_gangs(theatre: Theatre, scheduler: str) -> None:
    groups, definition = SCHEDULERS[scheduler]
    theatre.install([definition()])
    theatre.record("PodGroup", groups.path())
    flag = f"--gang-scheduler-name={scheduler}"
    old, new = theatre.old(flag), theatre.new(flag)
    stages = [Stage(theatre.api, FRAMEWORKS[kind]) for kind in KINDS]
    cast = [
        (stage, scene, f"{scene.name}-{operator}")
        for stage in stages
        for scene in scenes(groups)
        for operator in (OLD, NEW)
    ]
    old.start()
    for stage, scene, name in cast:
        run_policy = {"schedulingPolicy": QUEUE, **scene.run_policy}
        stage.create_scene(replace(scene, name=name, resources=RESOURCES, run_policy=run_policy))
    for stage, scene, name in cast:
        for step in scene.past:
            step(stage, name)
    theatre.audit.wait_quiet(OLD, ignored=QUEUED)
    old.end()

    before, mark = theatre.versions(), theatre.audit.end()
    new.start()
    theatre.wait_settled(new, NEW)
    # only a job that waits for Volcano gets something: services, and replicaStatuses
    waiting = QUEUED if groups == VOLCANO_GROUPS else "none"
    assert [str(write) for write in theatre.writes(NEW, mark, events=True) if waiting not in write.name] == []
    assert [line for line in differences(before, theatre.versions()) if waiting not in line] == []
    play_future(cast, NEW)
    theatre.audit.wait_quiet(NEW)
    assert [str(write) for write in theatre.writes(NEW, mark) if write.code >= 400] == []
    assert new.end() == 0

    before = theatre.versions()
    old.start()
    play_future(cast, OLD)
    old.end()
    untouched = {name: version for name, version in before.items() if f"-{OLD}" not in name}
    after = theatre.versions()
    assert of_jobs(differences(untouched, {name: after[name] for name in untouched.keys() & after.keys()})) == []
    assert list(broken_laws(theatre)) == []


def play_future(cast: list[tuple[Stage, Scene, str]], user: str) -> None:
    for stage, scene, name in cast:
        if name.endswith(f"-{user}"):
            for step in scene.future:
                step(stage, name)
