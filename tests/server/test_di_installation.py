"""di-operator and di-server as the overlay di-system installs them: with the rights of its roles, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.audit import Right, granted, requested
from tests.kustomize import RBAC_KINDS, combine, rights_of
from tests.server.applied import live_as_applied
from tests.server.conftest import NUMBERS
from tests.server.di_programs import PYTHON, DiOperator, DiServer, Pods
from tests.server.di_world import AGGREGATORS, TEMPLATE, DiWorld, request
from tests.server.pod import deployment_of
from tests.server.test_installation import apply
from tests.server.webhooks import DIJOBS, dijob
from tests.server.world import CORE, MERGE, Json, World

GROUP = "diengine.opendilab.org"
UNSEEN = {
    Right(GROUP, "dijobs/finalizers", "update"),  # an admission plugin checks it
    # tests/diserver shows these requests: the cache does not have a job yet, and another server has the Lease
    Right(GROUP, "dijobs", "get"),
    Right("coordination.k8s.io", "leases", "get"),
}
"""Rights that no request of these jobs needs."""


@pytest.fixture
def objects(kubectl: str, tmp_path: Path) -> list[Json]:
    """Those of the overlay, in a namespace of their own."""
    return combine(kubectl, tmp_path / "overlay", "di-system", namespace=f"di-system-{next(NUMBERS)}")


@pytest.fixture
def home(control_plane: ControlPlane, objects: list[Json]) -> str:
    """The namespace of the installation, with its roles and an AggregatorConfig."""
    system = World(control_plane.api, deployment_of(objects, "di-operator")["metadata"]["namespace"])
    for document in objects:
        if document["kind"] in RBAC_KINDS:
            apply(control_plane.api, document)
    shared = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "AggregatorConfig",
        "metadata": {"name": "aggregator-config"},
        "spec": {"aggregator": TEMPLATE},
    }
    system.ask("POST", AGGREGATORS, shared)
    return system.namespace


@pytest.fixture
def programs(
    control_plane: ControlPlane, home: str, objects: list[Json], alone: None, tmp_path: Path
) -> Iterator[tuple[DiOperator, DiServer]]:
    pods = Pods(control_plane, home, tmp_path, objects)
    operator = DiOperator(
        tmp_path / "operator.log",
        *pods.arguments("di-operator"),
        "--pod-events",  # so that an event is repeated, which is a patch of the first
        command=[*pods.inside("di-operator"), *PYTHON, "di-operator"],
        environment=pods.environment,
    )
    operator.start()
    command = [*pods.inside("di-server"), *PYTHON, "di-server", *pods.arguments("di-server")]
    server = DiServer(tmp_path / "server.log", command, pods.environment)
    yield operator, server
    server.end()
    operator.end()


def test_with_exactly_the_rights_of_the_overlay(
    control_plane: ControlPlane, home: str, objects: list[Json], programs: tuple[DiOperator, DiServer]
):
    operator, server = programs
    world = DiWorld(control_plane.api, f"rl{next(NUMBERS)}")
    live(world, server)
    for account, log in (("di-operator", operator.text()), ("di-server", server.log.read_text())):
        used = requested(control_plane, home, account)
        # this API server streams the initial state; one without watch-list is asked for lists
        used |= {right._replace(verb="list") for right in used if right.verb == "watch"}
        unused = granted(rights_of(objects, account)) - UNSEEN - used
        assert not unused, f"{account}: granted and never used: {sorted(unused)}"
        assert requested(control_plane, home, account, "forbid") == set(), account
        assert "permission denied" not in log
    leases = control_plane.api("GET", f"/apis/coordination.k8s.io/v1/namespaces/{home}/leases").body["items"]
    assert [each["metadata"]["name"] for each in leases] == ["12841a5d.opendilab.org"]


def live(world: DiWorld, server: DiServer) -> None:
    """A job through its whole life, with every request that di-server answers."""
    metadata = {"name": "taken-coordinator"}
    world.ask("POST", f"{CORE}/services", {"metadata": metadata, "spec": {"ports": [{"port": 1}]}})
    world.create_dijob("taken")
    world.wait(lambda: world.told_of("FailedCreate"), "the event about a Service of others")
    live_as_applied(world, DIJOBS, dijob("Running"))
    # a field that the API server drops is an event of di-server, and again in the next request
    misspelt = {"template": {"spec": {"containers": [{"name": "di-container", "image": "none", "envs": []}]}}}
    world.ask("POST", DIJOBS, dijob("Running", "a", collector=misspelt, learner=TEMPLATE))
    first = world.wait(lambda: world.pods().get("a-coordinator"), "the coordinator")["metadata"]["uid"]
    world.ask("DELETE", f"{CORE}/pods/a-coordinator?gracePeriodSeconds=0")
    again = ("SuccessfulCreate", "Create pod: a-coordinator", 2)
    world.wait(lambda: again in world.told(), "the event of the second creation")
    assert world.pods()["a-coordinator"]["metadata"]["uid"] != first
    world.wait(lambda: "a-coordinator" in world.pods(), "the coordinator")
    own = {"namespace": world.namespace, "coordinator": "a-coordinator"}
    assert request(server.port, "POST", "/v1alpha1/replicas", own)[0] == 403, "this machine is not the coordinator"
    assert request(server.port, "POST", "/v1alpha1/replicas", own, token=token_of_a_user(world))[0] == 200
    # from here on, requests of this machine are those of the coordinator
    status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
    world.ask("PATCH", f"{CORE}/pods/a-coordinator/status", {"status": status}, MERGE)
    world.wait_phase("a", "Running")
    two = {"collectors": {"replicas": 2}, "learners": {"replicas": 1, "gpus": 2}}
    for method, path, body in (
        ("POST", "", {**own, "collectors": {"replicas": 1}}),
        ("DELETE", "", {**own, "collectors": {"replicas": 1}}),
        ("POST", "", {**own, **two}),
        ("GET", f"?namespace={world.namespace}&coordinator=a-coordinator", None),
        ("GET", "", None),
        ("DELETE", "", {**own, "collectors": {"replicas": 1}}),
    ):
        code, answer = request(server.port, method, f"/v1alpha1/replicas{path}", body)
        assert (code, answer["success"]) == (200, True), answer
    (failed,) = world.pods_of("a", "collector")
    code, answer = request(server.port, "POST", "/v1alpha1/replicas/failed", {**own, "collectors": [failed]})
    assert (code, len(answer["data"]["collectors"])) == (200, 1), answer

    def repeated() -> bool:
        return any(reason == "UnknownFields" and count > 1 for reason, _, count in world.told())

    world.wait(repeated, "the repeated event about dropped fields")
    world.wait_all_services("a")
    world.set_pods("Running", *world.pods_of("a"))
    world.set_pods("Succeeded", "a-coordinator")
    world.wait_phase("a", "Succeeded")
    world.wait(lambda: [*world.pods_of("a")] == ["a-coordinator"], "the clean-up")
    world.wait(lambda: world.told_of("DIJobSucceeded"), "the event")
    world.ask("DELETE", f"{DIJOBS}/a")


def token_of_a_user(world: World) -> str:
    """The token of a service account that may do everything in the namespace."""
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    world.ask("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "user"}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": world.namespace}
    world.ask("POST", rbac, {"metadata": {"name": "user"}, "roleRef": role, "subjects": [subject]})
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(world.ask("POST", f"{CORE}/serviceaccounts/user/token", body)["status"]["token"])
