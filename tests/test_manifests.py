"""`trainop manifests`: the files in the tree are up to date, and request no rights beyond those that are used."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from trainop import __version__
from trainop.cli import cli
from trainop.errors import TrainopError
from trainop.kinds.trainjob.crd import train_job_crds
from trainop.manifests.command import OutdatedManifestsError
from trainop.manifests.rbac import job_resources, rules
from trainop.manifests.tree import files, stream
from trainop.manifests.webhook import MATCH_CONDITIONS, TIMEOUT
from trainop.programs.schemes import crds
from trainop.programs.settings import Settings
from trainop.runtime.objects.metadata import Json

ROOT = Path(__file__).parents[1]
REQUIRED = "components/required-webhooks"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["manifests", *arguments])


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def test_only_the_component_of_kueue_has_rights_on_its_objects():
    """An installation without it is the same as if the operator could not queue jobs. Users of the page, and the admins
    who give them their role, may list them, for `why`."""
    of_users = {f"components/{each}/{each}.yaml" for each in ("page", "page-namespaced", "namespace-admins")}
    named = {
        path.relative_to(ROOT / "manifests").as_posix()
        for path in (ROOT / "manifests").rglob("*.yaml")
        if any(line.strip().strip("- '\"") == "kueue.x-k8s.io" for line in path.read_text("utf-8").splitlines())
    }
    assert named == {"components/kueue/kueue.yaml", "chart/templates/kueue.yaml", *of_users}
    for each in of_users:
        roles = yaml.safe_load_all((ROOT / "manifests" / each).read_text("utf-8"))
        rules_of = [rule for role in roles for rule in role.get("rules", ()) if "kueue.x-k8s.io" in rule["apiGroups"]]
        assert [rule["verbs"] for rule in rules_of] == [["list"]], each
    assert "kueue" not in str(rules())


def test_the_manifests_of_this_repository_are_up_to_date():
    found = {
        path.relative_to(ROOT / "manifests").as_posix() for path in (ROOT / "manifests").rglob("*") if path.is_file()
    }
    assert found == set(files())
    result = run(str(ROOT / "manifests"), "--check")
    assert result.exception is None, result.exception


def test_check_names_the_files_that_differ(tmp_path: Path):
    assert run(str(tmp_path)).exit_code == 0
    assert run(str(tmp_path), "--check").exit_code == 0
    (tmp_path / "base" / "rbac.yaml").write_text("changed", encoding="utf-8")
    (tmp_path / "crds" / "pytorchjobs.kubeflow.org.yaml").unlink()
    (tmp_path / "crds" / "oldjobs.kubeflow.org.yaml").write_text(files()["kustomization.yaml"], encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("a: b", encoding="utf-8")
    error = run(str(tmp_path), "--check").exception
    assert isinstance(error, OutdatedManifestsError)
    assert isinstance(error, TrainopError)
    differing = "base/rbac.yaml, crds/oldjobs.kubeflow.org.yaml, crds/pytorchjobs.kubeflow.org.yaml"
    assert str(error) == f"not up to date in {tmp_path}: {differing}; run `trainop manifests {tmp_path}`"
    assert (tmp_path / "base" / "rbac.yaml").read_text(encoding="utf-8") == "changed"

    assert run(str(tmp_path)).exit_code == 0
    assert run(str(tmp_path), "--check").exit_code == 0
    assert not (tmp_path / "crds" / "oldjobs.kubeflow.org.yaml").exists()
    assert (tmp_path / "mine.yaml").exists()


def test_kustomizations_name_files_that_are_there():
    tree = files()
    directories = {str(Path(path).parent) for path in tree}
    for path, text in tree.items():
        if not path.endswith("kustomization.yaml"):
            continue
        for resource in documents(text)[0].get("resources", ()):
            target = (Path("/") / Path(path).parent / resource).resolve().relative_to("/").as_posix()
            assert target in tree or target in directories, f"{path}: {resource}"


def test_every_kind_has_its_crd():
    listed = documents(files()["crds/kustomization.yaml"])[0]["resources"]
    assert listed == sorted(f"{each['metadata']['name']}.yaml" for each in crds())
    assert "mpijobs.kubeflow.org.yaml" in listed


def test_the_stream_places_everything_in_the_namespace_that_was_asked_for():
    result = run("--print", "--namespace", "elsewhere", "--image", "mine/trainop:9")
    objects = documents(result.stdout)
    assert objects == stream("elsewhere", "mine/trainop:9")
    webhooks = "ValidatingWebhookConfiguration"
    spread = {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", webhooks}
    for item in objects:
        assert item["metadata"].get("namespace") == (None if item["kind"] in spread else "elsewhere"), item["kind"]
        for subject in item.get("subjects", ()):
            assert subject["namespace"] == "elsewhere"
    called = next(item for item in objects if item["kind"] == webhooks)["webhooks"]
    assert {webhook["clientConfig"]["service"]["namespace"] for webhook in called} == {"elsewhere"}
    deployment = next(item for item in objects if item["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "mine/trainop:9"
    first = next(item for item in documents(run("--print").stdout) if item["kind"] == "Deployment")
    assert first["spec"]["template"]["spec"]["containers"][0]["image"] == f"trainop:{__version__}"


def test_rights_are_no_more_than_are_used():
    granted = {
        (group, resource): set(rule["verbs"])
        for rule in rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    everyday = {"get", "list", "watch", "create", "patch", "delete"}
    jobs = [("kubeflow.org", plural) for plural in job_resources()["kubeflow.org"]]
    dijobs = "diengine.opendilab.org", "dijobs"
    assert granted == {
        **{(group, plural): {"get", "list", "watch", "patch", "delete"} for group, plural in jobs},
        **{(group, f"{plural}/status"): {"patch", "update"} for group, plural in (*jobs, dijobs)},
        **{(group, f"{plural}/finalizers"): {"update"} for group, plural in jobs},
        dijobs: {"get", "list", "watch"},
        ("", "pods"): everyday,
        ("", "services"): everyday,
        ("", "configmaps"): everyday - {"delete"},
        ("autoscaling", "horizontalpodautoscalers"): everyday,
        ("scheduling.volcano.sh", "podgroups"): everyday,
        ("scheduling.x-k8s.io", "podgroups"): everyday,
        ("scheduling.k8s.io", "podgroups"): everyday,
        ("scheduling.k8s.io", "workloads"): everyday,
        ("", "events"): {"create", "patch"},
    }
    of_transports = ("components/mpi-", "chart/templates/mpi-", "chart-mpi-operator/", "overlays/mpi-operator/")
    of_users = "components/namespace-admins"
    texts = "\n".join(text for path, text in files().items() if not path.startswith((*of_transports, of_users)))
    assert "pods/exec" not in texts
    assert '"*"' not in texts.replace("'*'", '"*"')


def test_leader_election_is_allowed_in_the_operators_own_namespace_alone():
    objects = documents(files()["base/rbac.yaml"])
    asking = [item for item in objects if any("leases" in rule["resources"] for rule in item.get("rules", ()))]
    assert [(item["kind"], item["metadata"]["name"]) for item in asking] == [
        ("Role", "training-operator-leader-election")
    ]
    assert asking[0]["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    ]


def test_of_secrets_and_webhook_configurations_only_the_operators_own_can_be_read_and_changed():
    objects = documents(files()["base/rbac.yaml"])
    found = [
        (item["kind"], rule["resources"], rule["verbs"], rule.get("resourceNames"))
        for item in objects
        for rule in item.get("rules", ())
        if {"secrets", "validatingwebhookconfigurations"} & set(rule["resources"])
    ]
    assert found == [
        (
            "ClusterRole",
            ["validatingwebhookconfigurations"],
            ["get", "list", "watch", "patch"],
            ["validator.training-operator.kubeflow.org"],
        ),
        ("Role", ["secrets"], ["get", "list", "watch", "update"], ["training-operator-webhook-cert"]),
        ("Role", ["secrets"], ["create"], None),  # cannot be limited to a name
    ]
    assert Settings().webhook_secret_name == "training-operator-webhook-cert"


KINDS_WITH_WEBHOOKS = (
    ("jaxjob", "v1"),
    ("mpijob", "v1"),
    ("mpijob", "v2beta1"),
    *((kind, "v1") for kind in ("mxjob", "paddlejob", "pytorchjob", "tfjob", "xgboostjob")),
)


def test_the_webhook_configuration_is_upstreams_except_for_its_policy_timeout_and_conditions():
    (configuration,) = documents(files()["base/webhook.yaml"])
    assert configuration["apiVersion"] == "admissionregistration.k8s.io/v1"
    assert configuration["kind"] == "ValidatingWebhookConfiguration"
    assert configuration["metadata"] == {
        "name": "validator.training-operator.kubeflow.org",
        "labels": {"control-plane": "kubeflow-training-operator"},
    }
    assert configuration["webhooks"] == [
        {
            "name": f"validator.{'' if version == 'v1' else f'{version}.'}{kind}.training-operator.kubeflow.org",
            "clientConfig": {
                "service": {
                    "name": "training-operator",
                    "namespace": "default",
                    "path": f"/validate-kubeflow-org-{version}-{kind}",
                }
            },
            "rules": [
                {
                    "apiGroups": ["kubeflow.org"],
                    "apiVersions": [version],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": [f"{kind}s"],
                }
            ],
            "matchPolicy": "Exact",
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT,
            "matchConditions": list(MATCH_CONDITIONS),
            "admissionReviewVersions": ["v1"],
        }
        for kind, version in KINDS_WITH_WEBHOOKS
    ]


def test_the_deployment_is_upstreams_in_what_others_rely_on():
    deployment = documents(files()["base/deployment.yaml"])[0]
    template = deployment["spec"]["template"]
    container = template["spec"]["containers"][0]
    labels = {"control-plane": "kubeflow-training-operator"}
    assert (deployment["metadata"]["name"], deployment["metadata"]["labels"]) == ("training-operator", labels)
    assert deployment["spec"]["selector"] == {"matchLabels": labels}
    assert template["metadata"] == {"labels": labels, "annotations": {"sidecar.istio.io/inject": "false"}}
    assert template["spec"]["serviceAccountName"] == "training-operator"
    assert (container["name"], container["command"][0]) == ("training-operator", "/manager")
    assert {variable["name"] for variable in container["env"]} == {"MY_POD_NAMESPACE", "MY_POD_NAME", "MY_POD_UID"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 8081}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8081}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert {"containerPort": 9443, "name": "webhook-server", "protocol": "TCP"} in container["ports"]
    assert "volumes" not in template["spec"], "the certificate is served from memory"


def test_prometheus_finds_the_metrics_and_the_api_server_the_webhooks():
    service = documents(files()["base/service.yaml"])[0]
    assert service["metadata"]["annotations"] == {
        "prometheus.io/path": "/metrics",
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "8080",
    }
    assert service["spec"]["selector"] == {"control-plane": "kubeflow-training-operator"}
    assert service["spec"]["ports"] == [
        {"name": "monitoring-port", "port": 8080, "targetPort": 8080},
        {"name": "webhook-server", "port": 443, "protocol": "TCP", "targetPort": 9443},
    ]


FOLDERS = sorted(
    path.parent.relative_to(ROOT / "manifests").as_posix()
    for path in (ROOT / "manifests").rglob("kustomization.yaml")
    if yaml.safe_load(path.read_text(encoding="utf-8"))["kind"] == "Kustomization"
)
"""Of all kustomizations that can be applied."""


def built(kubectl: str, overlay: str) -> list[Any]:
    done = subprocess.run(
        [kubectl, "kustomize", ROOT / "manifests" / overlay], capture_output=True, check=True, text=True
    )
    return documents(done.stdout)


@pytest.mark.parametrize("folder", FOLDERS)
def test_crds_are_an_installation_of_their_own(kubectl: str, folder: str):
    """What is deleted with `kubectl delete -k` of any other folder leaves CRDs, and with them jobs, as they are."""
    found = {item["metadata"]["name"] for item in built(kubectl, folder) if item["kind"] == "CustomResourceDefinition"}
    of_folders = {"crds": crds(), "crds-typed": crds(), "crds-trainjob": train_job_crds()}
    assert found == {each["metadata"]["name"] for each in of_folders.get(folder, [])}


def test_the_stream_is_the_only_one_with_crds_and_an_operator_and_says_so():
    printed, without = run("--print").stdout, run("--print", "--without-crds").stdout
    assert [each for each in documents(printed) if each not in documents(without)] == crds()
    first = printed.partition("apiVersion")[0]
    assert "`kubectl delete -f` of this stream deletes every job of the" in first
    assert "--without-crds" in first
    assert not without.startswith("#")


@pytest.mark.parametrize("overlay", [".", "base", "overlays/standalone", "overlays/kubeflow", "overlays/namespaced"])
def test_overlays_can_be_built(kubectl: str, overlay: str):
    names = {(item["kind"], item["metadata"]["name"]) for item in built(kubectl, overlay)}
    assert ("Deployment", "training-operator") in names
    assert (("Namespace", "kubeflow") in names) == (overlay in {".", "overlays/standalone"})
    called = [
        webhook["clientConfig"]["service"]["namespace"]
        for item in built(kubectl, overlay)
        for webhook in item.get("webhooks", ())
    ]
    count = 0 if overlay == "overlays/namespaced" else len(KINDS_WITH_WEBHOOKS)
    assert called == ["default" if overlay == "base" else "kubeflow"] * count


def test_webhooks_can_be_required_in_any_namespace(kubectl: str, tmp_path: Path):
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    own: Json = {"namespace": "mine", "resources": ["manifests/base"], "components": [f"manifests/{REQUIRED}"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    objects = built(kubectl, str(tmp_path))
    webhooks = next(item for item in objects if item["kind"] == "ValidatingWebhookConfiguration")["webhooks"]
    assert {webhook["failurePolicy"] for webhook in webhooks} == {"Fail"}
    assert {webhook["clientConfig"]["service"]["namespace"] for webhook in webhooks} == {"mine"}
    assert len(webhooks) == len(KINDS_WITH_WEBHOOKS)


def test_a_namespaced_installation_has_no_right_beyond_its_namespace(kubectl: str):
    objects = built(kubectl, "overlays/namespaced")
    spread = {"ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration"}
    assert not {item["kind"] for item in objects} & spread
    assert not any("secrets" in rule["resources"] for item in objects for rule in item.get("rules", ()))
    role = next(item for item in objects if item["kind"] == "Role" and item["metadata"]["name"] == "training-operator")
    assert role["rules"] == rules()
    deployment = next(item for item in objects if item["kind"] == "Deployment")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert {"--namespace=$(MY_POD_NAMESPACE)", "--webhook-server-port=0"} <= {*command}
