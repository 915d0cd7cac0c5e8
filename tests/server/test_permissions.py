"""The operator with a role that lacks a right: it says which, keeps serving, and goes on once the right is granted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from tests.server.process import Operator
from tests.server.world import CORE, MERGE, Json, World, replicas

MakeOperator = Callable[..., Operator]
ROOT = Path(__file__).parent.parent.parent
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Account:
    """A service account with the shipped ClusterRole but for one right, which `grant_all` adds."""

    def __init__(self, world: World, control_plane: ControlPlane, folder: Path, verb: str, resource: str) -> None:
        self._world = world
        self._name = f"{world.namespace}-operator"
        documents = yaml.safe_load_all((ROOT / "manifests" / "base" / "rbac.yaml").read_text())
        self._rules: list[Json] = next(each for each in documents if each["kind"] == "ClusterRole")["rules"]
        world.ask("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": self._name}})
        world.ask(
            "POST", f"{RBAC}/clusterroles", {"metadata": {"name": self._name}, "rules": self._without(verb, resource)}
        )
        subject = {"kind": "ServiceAccount", "name": self._name, "namespace": world.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self._name}
        body = {"metadata": {"name": self._name}, "roleRef": role, "subjects": [subject]}
        world.ask("POST", f"{RBAC}/clusterrolebindings", body)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = world.ask("POST", f"{CORE}/serviceaccounts/{self._name}/token", request)["status"]["token"]
        config = yaml.safe_load(control_plane.kubeconfig.read_text())
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def _without(self, verb: str, resource: str) -> list[Json]:
        split = [{**rule, "resources": [each]} for rule in self._rules for each in rule["resources"]]
        return [
            {**rule, "verbs": [each for each in rule["verbs"] if rule["resources"] != [resource] or each != verb]}
            for rule in split
        ]

    def grant_all(self) -> None:
        path = f"{RBAC}/clusterroles/{self._name}"
        self._world.ask("PATCH", path, {"rules": self._rules}, MERGE)


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("create", "services"),  # a write of one job
        ("watch", "pods"),  # the cache of all controllers
    ],
)
def test_a_lacking_right_is_named(  # the name in the log, the metric and an event
    verb: str,
    resource: str,
    control_plane: ControlPlane,
    quiet_world: World,
    alone: None,
    make_operator: MakeOperator,
    tmp_path: Path,
):
    world = quiet_world
    account = Account(world, control_plane, tmp_path, verb, resource)
    pod = {"MY_POD_NAMESPACE": world.namespace, "MY_POD_NAME": "training-operator-0", "MY_POD_UID": "0-1-2"}
    flags = [f"--namespace={world.namespace}", "--zap-devel=false", "--webhook-server-port=0"]
    operator = make_operator(account.kubeconfig, *flags, environment=pod)
    operator.start(wait=False)
    world.create_job("j", {"Master": replicas(1)})

    operator.wait_text("permission denied")
    (event,) = world.wait(lambda: world.events("PermissionDenied"), "the event")
    assert f"lacks `{verb} {resource}`" in event["message"]
    assert event["involvedObject"]["name"] == "training-operator-0"
    assert event["involvedObject"]["uid"] == "0-1-2"
    entries = [json.loads(line) for line in operator.text().splitlines() if '"permission denied"' in line]
    assert [entry["permission"] for entry in entries] == [f"{verb} {resource}"]
    series = f'trainop_permissions_denied_total{{group="",resource="{resource}",verb="{verb}"}}'
    assert (operator.metric(series) or 0) >= 1
    assert operator.probe("/healthz")[0] == 200

    account.grant_all()
    world.wait_pods("j-master-0")
    world.wait_services("j-master-0")
