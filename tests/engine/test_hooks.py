"""What a Framework may say of roles, pods and companions that none of today's kinds says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import pytest

from tests.engine.builders import (
    UID,
    make_job,
    make_pod,
    manifest_of,
    names,
    pod_created,
    see,
    service_created,
)
from tests.upstream import KEEPS_LOG
from trainop.engine.actions import Action, Adopt, Ensure, Need, Plan, Remove
from trainop.engine.framework import (
    Companion,
    CompanionKind,
    Framework,
    Mount,
    PodAdditions,
    Replicas,
    RoleAdditions,
    Services,
)
from trainop.engine.parse import parse
from trainop.engine.plan import plan
from trainop.engine.steps.companions import FINGERPRINT
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import CONFIG_MAPS, PODS, SECRETS, Json, Resource, Unstructured, owner_reference

Found = Mapping[Resource, Sequence[Unstructured]]
OWNER = owner_reference("kubeflow.org/v1", "PyTorchJob", "j", UID)


def with_master(**fields: Any) -> Framework:
    return dataclasses.replace(PYTORCH, roles={**PYTORCH.roles, "Master": Replicas(0, 1, **fields)})


def pods_of(framework: Framework, job: Json | None = None) -> list[Json]:
    return [manifest_of(action) for action in plan(framework, see(job or make_job())).actions if pod_created(action)]


# Roles ----------------------------------------------------------------------------------------------------------------


def test_a_role_without_index_in_its_names():
    framework = with_master(indexed=False)
    made = plan(framework, see(make_job()))
    assert names(made, pod_created) == ["j-master", "j-worker-0", "j-worker-1"]
    assert names(made, service_created) == ["j-master", "j-worker-0", "j-worker-1"]
    pod = make_pod("master", name="j-master")
    assert "j-master" not in names(plan(framework, see(make_job(), [pod])), pod_created)


@pytest.mark.parametrize(("name", "adopted"), [("j-master", True), ("j-master-0", False)])
def test_an_orphan_of_a_role_without_index_is_adopted_by_its_name(name: str, adopted: bool):
    orphan = make_pod("master", name=name, owner=None)
    made = plan(with_master(indexed=False), see(make_job(), [orphan]))
    assert [action.name for action in made.actions if isinstance(action, Adopt) and action.resource == PODS] == [
        name
    ] * adopted


@pytest.mark.parametrize(
    ("services", "expected"),
    [(Services.NONE, []), (Services.FIRST, ["j-worker-0"]), (Services.EACH, ["j-worker-0", "j-worker-1"])],
)
def test_which_replicas_have_services(services: Services, expected: list[str]):
    framework = dataclasses.replace(PYTORCH, roles={**PYTORCH.roles, "Worker": Replicas(1, services=services)})
    assert names(plan(framework, see(make_job())), service_created) == ["j-master-0", *expected]


def test_the_default_count_of_a_role():
    framework = with_master(default=0)
    job = make_job()
    del job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"]
    assert names(plan(framework, see(job)), pod_created) == ["j-worker-0", "j-worker-1"]


def test_the_restart_policies_of_a_role():
    framework = with_master(restart_policy="Never", restart_policies=("Never", "OnFailure"))
    role = parse(framework, Unstructured(make_job())).role("Master")
    assert role is not None
    assert role.restart_policy == "Never"
    job = make_job()
    job["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] = "ExitCode"
    (error,) = parse(framework, Unstructured(job)).errors
    assert str(error).endswith('restartPolicy: Unsupported value: "ExitCode": supported values: "Never", "OnFailure"')


@pytest.mark.parametrize(
    ("manager", "is_ours"), [("kubeflow.org/mpi-operator", True), ("kubeflow.org/training-operator", False)]
)
def test_the_manager_that_means_this_operator(manager: str, is_ours: bool):
    framework = dataclasses.replace(PYTORCH, managers=("kubeflow.org/mpi-operator",))
    made = plan(framework, see(make_job(run={"managedBy": manager})))
    assert bool(names(made, pod_created)) is is_ours


# Pods -----------------------------------------------------------------------------------------------------------------


def test_one_hook_dresses_a_pod():
    added = RoleAdditions(
        command=["sleep", "365d"],
        service_account="j-launcher",
        mounts=[Mount("keys", {"secret": {"secretName": "j-ssh"}}, "/etc/keys")],
        init_containers=[{"name": "wait", "image": "i"}],
    )
    additions = PodAdditions(of_role=lambda role: added if role.type == "Worker" else RoleAdditions())
    framework = dataclasses.replace(PYTORCH, additions=lambda _job, _options: additions)
    master, worker, _ = (pod["spec"] for pod in pods_of(framework))
    assert master.keys() == {"containers", "restartPolicy"}
    (container,) = worker["containers"]
    assert container["command"] == ["sleep", "365d"]
    assert container["volumeMounts"] == [{"name": "keys", "mountPath": "/etc/keys", "readOnly": True}]
    assert "env" not in container
    assert worker["serviceAccountName"] == "j-launcher"
    assert worker["volumes"] == [{"name": "keys", "secret": {"secretName": "j-ssh"}}]
    assert worker["initContainers"] == [{"name": "wait", "image": "i", **KEEPS_LOG}]


def test_the_users_command_is_kept():
    additions = PodAdditions(of_role=lambda _role: RoleAdditions(command=["sleep"]))
    framework = dataclasses.replace(PYTORCH, additions=lambda _job, _options: additions)
    job = make_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"] = ["mine"]
    assert [pod["spec"]["containers"][0]["command"] for pod in pods_of(framework, job)] == [
        ["sleep"],
        ["mine"],
        ["mine"],
    ]


# Companions -----------------------------------------------------------------------------------------------------------

SECRET = CompanionKind(SECRETS, Need.JOB)
SETTINGS = CompanionKind(CONFIG_MAPS, Need.JOB)


def having(companions: Callable[[Found], Sequence[Companion]]) -> Framework:
    return dataclasses.replace(
        PYTORCH, companion_kinds=(SECRET, SETTINGS), companions=lambda _job, seen: companions(seen.companions)
    )


def seen_with(framework: Framework, *found: Json) -> Plan:
    objects = {
        kind.resource: tuple(Unstructured(raw) for raw in found if raw["kind"] == kind.resource.kind)
        for kind in framework.companion_kinds
    }
    return plan(framework, dataclasses.replace(see(make_job()), companions=objects))


def of_companion(action: Action) -> TypeGuard[Ensure]:
    return isinstance(action, Ensure) and action.encode is None


def stored(made: Plan) -> Json:
    """The companion that the plan applies, as the API server then has it."""
    (action,) = (action for action in made.actions if of_companion(action))
    metadata = {**action.manifest["metadata"], "uid": "uid-c", "resourceVersion": "1"}
    return {**action.manifest, "metadata": metadata}


def written_manifests(made: Plan) -> list[Json]:
    return [action.manifest for action in made.actions if of_companion(action)]


def test_a_companion_that_is_written_once_is_never_rewritten():
    keys = iter("abc")
    secret = Companion(SECRET, "j-ssh", "", lambda: {"data": {"key": next(keys)}}, correct=lambda _: None)
    framework = having(lambda _: [secret])
    found = stored(seen_with(framework))
    assert found["data"] == {"key": "a"}
    assert written_manifests(seen_with(framework, found)) == []


def test_a_held_companion_is_left_alone_and_pods_wait():
    def settings(text: str, *, held: bool) -> Framework:
        return having(lambda _: [Companion(SETTINGS, "j-settings", text, lambda: {"data": {"text": text}}, held=held)])

    assert list(filter(of_companion, (made := seen_with(settings("a", held=True))).actions)) == []
    assert list(filter(pod_created, made.actions)) == []
    free = seen_with(settings("a", held=False))
    assert list(filter(pod_created, free.actions))
    again = seen_with(settings("b", held=True), stored(free))
    assert list(filter(of_companion, again.actions)) == []
    assert not any(isinstance(action, Remove) for action in again.actions)


def test_a_companion_may_depend_on_what_exists():
    """An existing queue wins over the default one."""

    def companions(found: Found) -> list[Companion]:
        queue = next((each.raw["data"]["queue"] for each in found[CONFIG_MAPS]), "default")
        return [Companion(SETTINGS, "j", queue, lambda: {"data": {"queue": queue}})]

    framework = having(companions)
    found = stored(seen_with(framework))
    assert found["data"] == {"queue": "default"}
    found["data"] = {"queue": "fast"}
    assert [manifest["data"] for manifest in written_manifests(seen_with(framework, found))] == [{"queue": "fast"}]


def test_pods_wait_for_a_companion_that_is_not_ready():
    framework = having(
        lambda _: [
            Companion(SETTINGS, "j", "x", dict, ready=lambda group: group.raw.get("data") == {"phase": "Inqueue"})
        ]
    )
    first = seen_with(framework)
    assert names(first, pod_created) == []
    assert names(first, service_created) == ["j-master-0", "j-worker-0", "j-worker-1"]
    found = stored(first)
    assert names(seen_with(framework, found), pod_created) == []
    found["data"] = {"phase": "Inqueue"}
    assert names(seen_with(framework, found), pod_created) == ["j-master-0", "j-worker-0", "j-worker-1"]


@pytest.mark.parametrize("field", ["data", "roleRef"])
def test_a_change_of_any_field_that_we_write_is_taken_back(field: str):
    framework = having(lambda _: [Companion(SETTINGS, "j", "x", lambda: {field: {"a": "b"}})])
    found = stored(seen_with(framework))
    assert found["metadata"]["annotations"].keys() == {FINGERPRINT}
    assert written_manifests(seen_with(framework, found)) == []
    found[field] = {"a": "changed", "theirs": "kept"}
    assert [manifest[field] for manifest in written_manifests(seen_with(framework, found))] == [{"a": "b"}]
    del found[field]
    assert len(written_manifests(seen_with(framework, found))) == 1
