"""What the accounts of an installation may do outside of its namespace, asked of the API server."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.kustomize import PAIRS, RBAC_KINDS, combinations, combine, write
from tests.needs import need_program
from tests.patience import PATIENCE
from tests.server.kubectl import Kubectl
from tests.server.test_installation import apply
from trainop.manifests.pairs import CRDS, INCLUDED, NO

NUMBERS = itertools.count(1)
CHART = Path(__file__).parents[2] / "manifests" / "chart"
PAGE = "training-operator-page"
ELSEWHERE = "default"
"""A namespace in which nothing is installed."""


class Home:
    """A new namespace in which an installation gets its rights."""

    def __init__(self, plane: ControlPlane) -> None:
        self.name = f"rights-{next(NUMBERS)}"
        self._plane = plane
        self._administrator = Kubectl(plane)
        self._administrator("create", "namespace", self.name)

    def grant(self, documents: list[Any]) -> list[str]:
        """Creates accounts, roles and bindings, and returns the names of the accounts. When this returns, the API
        server acts on them: it learns of the objects of a kind in order, and acts on those that were created last."""
        for document in documents:
            if document["kind"] in RBAC_KINDS:
                apply(self._plane.api, document)
        last, account = f"{self.name}-last", f"--serviceaccount={self.name}:last"
        create, here = self._administrator, f"--namespace={self.name}"
        create("create", "role", last, "--verb=get", "--resource=endpoints", here)
        create("create", "rolebinding", last, f"--role={last}", account, here)
        create("create", "clusterrole", last, "--verb=get", "--resource=persistentvolumes")
        create("create", "clusterrolebinding", last, f"--clusterrole={last}", account)

        def is_known() -> bool:
            return all(f'"{each}"' in str(self.rules("last", self.name)) for each in ("endpoints", "persistentvolumes"))

        assert wait_until(is_known, PATIENCE)
        return [each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"]

    def rules(self, account: str, namespace: str = ELSEWHERE) -> set[str]:
        """The rules of a service account of this namespace in another one, and in the cluster."""
        kubectl = Kubectl(self._plane, f"--as=system:serviceaccount:{self.name}:{account}")
        about = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        review = json.dumps({**about, "spec": {"namespace": namespace}})
        status = json.loads(kubectl("create", "--validate=false", "--output=json", "-f", "-", stdin=review))["status"]
        assert not status["incomplete"], status
        return {json.dumps(rule) for rule in (*status["resourceRules"], *status["nonResourceRules"])}

    def common_rules(self) -> set[str]:
        """Those of every service account."""
        return self.rules("without-any-role")


@pytest.mark.parametrize(
    "components",
    [components for overlay, components in combinations() if overlay == "namespaced"],
    ids=lambda components: "+".join(name.rpartition("/")[2] for name in components) or "alone",
)
def test_a_namespaced_operator_has_no_right_elsewhere(
    control_plane: ControlPlane, kubectl: str, tmp_path: Path, components: list[str]
):
    home = Home(control_plane)
    accounts = home.grant(combine(kubectl, tmp_path, "namespaced", components, namespace=home.name))
    assert {"training-operator"} <= {*accounts} <= {"training-operator", PAGE}
    for account in accounts:
        assert home.rules(account) == home.common_rules()
    assert home.rules("training-operator", home.name) > home.common_rules()
    assert home.rules(PAGE, home.name) == home.rules("without-any-role", home.name), "the page has no rights at all"


def test_the_rights_of_an_operator_of_all_namespaces_are_seen(
    control_plane: ControlPlane, kubectl: str, tmp_path: Path, alone: None
):
    """The question of the other tests would find them."""
    home = Home(control_plane)
    home.grant(combine(kubectl, tmp_path, "standalone", ["mpi-ssh"], namespace=home.name))
    assert any('"secrets"' in rule for rule in home.rules("training-operator") - home.common_rules())


def switches() -> list[str]:
    """The values that add components to a release."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return [f"components.{name}=true" for name, value in values["components"].items() if value is False]


@pytest.mark.parametrize("switch", ["namespaced=true", *switches()])
def test_a_namespaced_release_has_no_right_elsewhere(control_plane: ControlPlane, switch: str):
    """Whatever else its values add, unless the chart refuses it."""
    home = Home(control_plane)
    flags = [f"--namespace={home.name}", "--kube-version=1.34.0", "--set=namespaced=true", f"--set={switch}"]
    done = subprocess.run(
        [need_program("helm"), "template", "release", str(CHART), *flags], capture_output=True, check=False, text=True
    )
    if done.returncode:
        assert switch.removesuffix("=true") in done.stderr, done.stderr
        refused = ("dijob", "kueue", "progress", "secureMetrics")
        assert switch in {f"components.{name}=true" for name in refused}
        return
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    if switch == "components.userRoles=true":
        documents = [each for each in documents if each["kind"] != "ClusterRole"]  # bound to no account
    assert home.grant(documents) == ["training-operator"]
    assert home.rules("training-operator") == home.common_rules()


def test_who_administers_a_namespace_installs_the_overlay_there(
    control_plane_with_controllers: ControlPlane, tmp_path: Path
):
    """With the component `namespace-admins`, which an administrator of the cluster adds to the CRDs. Without it, the
    API server lets nobody create a Role that grants more than they have."""
    plane, namespace = control_plane_with_controllers, "team-a"
    administrator, owner = Kubectl(plane), Kubectl(plane, "--as=owner")
    administrator("create", "namespace", namespace)
    administrator("create", "rolebinding", "owner", "--clusterrole=admin", "--user=owner", f"--namespace={namespace}")
    of_prometheus = {"components/prometheus-rule", "components/service-monitor"}  # whose CRDs are not installed
    not_to_grant = {"components/eviction-responder-namespaced"}  # RBAC cannot limit it to the pods of jobs
    fitting = {name for name, fits in PAIRS.items() if fits["namespaced"] not in {NO, INCLUDED}}
    chosen = sorted(fitting - of_prometheus - not_to_grant)
    assert len(chosen) == len(fitting) - 3
    write(tmp_path / "team", "namespaced", chosen, namespace=namespace)
    refused = owner.try_to("apply", "--server-side", "-k", tmp_path / "team")
    assert "attempting to grant RBAC permissions not currently held" in refused.stderr
    write(tmp_path / "cluster", CRDS, ["namespace-admins"])
    administrator("apply", "--server-side", "--force-conflicts", "-k", tmp_path / "cluster")
    may = ("auth", "can-i", "patch", "pytorchjobs", "--subresource=status", f"--namespace={namespace}")
    assert wait_until(lambda: owner.try_to(*may).stdout.strip() == "yes", PATIENCE), "roles are not aggregated"
    installed = owner("apply", "--server-side", "--force-conflicts", "-k", tmp_path / "team")
    for each in ("deployment.apps", "rolebinding.rbac.authorization.k8s.io"):
        assert f"{each}/training-operator " in installed
    owner("delete", "-k", tmp_path / "team")
    assert "pytorchjobs.kubeflow.org" in administrator("get", "crd", "--output=name")
