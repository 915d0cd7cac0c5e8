"""An operator of several namespaces works in each of them, and in no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from e2e.cluster.controlplane import ControlPlane
from tests.server.conftest import NUMBERS
from tests.server.process import Operator
from tests.server.world import CORE, JOBS, Json, World, replicas

ROOT = Path(__file__).parent.parent.parent
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"


def test_it_works_in_every_namespace_that_the_flag_names(
    control_plane: ControlPlane, alone: None, make_operator: Callable[..., Operator]
):
    first, second, other = (World(control_plane.api, f"ns{next(NUMBERS)}") for _ in range(3))
    other.create_job("j", {"Master": replicas(1)})  # the oldest, so that it would be the first
    make_operator(control_plane.kubeconfig, f"--namespace={first.namespace},{second.namespace}").start()
    for world in (first, second, first):
        name = f"j{next(NUMBERS)}"
        world.create_job(name, {"Master": replicas(1)})
        world.wait_pod(f"{name}-master-0")
    assert not other.pods()
    assert not other.status()


class Team:
    """A namespace in which an account may have the shipped Role of `namespaced`, or that Role without a right."""

    def __init__(self, control_plane: ControlPlane, account: Json) -> None:
        self.world = World(control_plane.api, f"ns{next(NUMBERS)}")
        self._account = account
        documents = yaml.safe_load_all((ROOT / "manifests" / "overlays" / "namespaced" / "role.yaml").read_text())
        self._rules = next(each for each in documents if each["kind"] == "Role")["rules"]

    def grant(self, *, without: str = "") -> None:
        """Grants the Role, without the resource `without`."""
        named = {"metadata": {"name": "team"}}
        rules = [{**rule, "resources": [each for each in rule["resources"] if each != without]} for rule in self._rules]
        if self.world.try_to("GET", f"{RBAC}/roles/team").status == 200:
            self.world.ask(
                "PUT", f"{RBAC}/roles/team", {**named, "rules": [each for each in rules if each["resources"]]}
            )
            return
        self.world.ask("POST", f"{RBAC}/roles", {**named, "rules": [each for each in rules if each["resources"]]})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "team"}
        self.world.ask("POST", f"{RBAC}/rolebindings", {**named, "roleRef": role, "subjects": [self._account]})

    def run(self, name: str) -> None:
        self.world.create_job(name, {"Master": replicas(1)})

    def remove(self) -> None:
        """Deletes the namespace with what is in it, as the namespace controller does."""
        for path in (f"{RBAC}/rolebindings", f"{RBAC}/roles", JOBS, f"{CORE}/pods", f"{CORE}/configmaps"):
            self.world.ask("DELETE", f"{path}?gracePeriodSeconds=0")
        for name in self.world.services():
            self.world.ask("DELETE", f"{CORE}/services/{name}")
        self.world.ask("DELETE", CORE)
        left = self.world.ask("GET", CORE)
        self.world.ask("PUT", f"{CORE}/finalize", {**left, "spec": {"finalizers": []}})
        self.world.wait(lambda: self.world.try_to("GET", CORE).status == 404, "the end of the namespace")


def test_rights_that_one_namespace_lacks_stop_no_other(
    control_plane: ControlPlane, alone: None, make_operator: Callable[..., Operator], tmp_path: Path
):
    home = World(control_plane.api, f"ns{next(NUMBERS)}")
    home.ask("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "operator"}})
    account = {"kind": "ServiceAccount", "name": "operator", "namespace": home.namespace}
    one, two, three = (Team(control_plane, account) for _ in range(3))
    one.grant()
    two.grant(without="pods")
    names = ",".join(each.world.namespace for each in (one, two, three))
    operator = make_operator(
        token_of(home, "operator", control_plane, tmp_path), f"--namespace={names}", "--webhook-server-port=0"
    )
    operator.start(wait=False)
    for team in (one, two, three):
        team.run("a")
    one.world.wait_pods("a-master-0")
    (event,) = two.world.wait(lambda: two.world.events("NoPermission"), "the event")
    assert f"no permission to list and watch pods in namespace {two.world.namespace}" in event["message"]
    assert not two.world.pods()
    assert not two.world.status("a")
    assert not three.world.status("a")

    two.grant()
    two.world.wait_pods("a-master-0")
    three.grant()
    three.world.wait_pods("a-master-0")

    three.remove()
    one.run("b")
    one.world.wait_pods("a-master-0", "b-master-0")
    three.world.ask("POST", "/api/v1/namespaces", {"metadata": {"name": three.world.namespace}})
    three.grant()
    three.run("c")
    three.world.wait_pods("c-master-0")
    assert operator.running


def token_of(world: World, account: str, control_plane: ControlPlane, folder: Path) -> Path:
    """A kubeconfig with a token of a service account."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = world.ask("POST", f"{CORE}/serviceaccounts/{account}/token", request)["status"]["token"]
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path
