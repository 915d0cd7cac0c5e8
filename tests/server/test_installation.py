"""The operator as the shipped manifests install it: in the environment of a pod, with the rights of its roles."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from e2e.cluster.api import Api
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.audit import Right, granted, requested
from tests.kustomize import PAIRS, combinations, combine
from tests.patience import PATIENCE
from tests.server.applied import live_as_applied
from tests.server.di_life import live_as_dijob
from tests.server.kinds import ROWS, KindWorld
from tests.server.mpi_life import live_as_mpi
from tests.server.pod import NAME, PodStandIn, deployment_of, flags_of
from tests.server.process import Operator
from tests.server.test_gang import Stage
from tests.server.webhooks import Webhooks
from tests.server.world import CORE, JOBS, MERGE, Json, World, replicas
from trainop.engine.gang_scheduler import KUBE_GROUPS, KUBE_WORKLOADS, PLUGIN_GROUPS, VOLCANO_GROUPS
from trainop.manifests.pairs import CRDS, YES
from trainop.programs.schemes import FRAMEWORKS

MakeOperator = Callable[..., Operator]
APPLY = "application/apply-patch+yaml"
ROOT = Path(__file__).parent.parent.parent
RBAC = "rbac.authorization.k8s.io/v1"
PLURALS = {
    "Namespace": "namespaces",
    "CustomResourceDefinition": "customresourcedefinitions",
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Deployment": "deployments",
    "Service": "services",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
    "ConfigMap": "configmaps",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
    "ServiceMonitor": "servicemonitors",
}


def apply(api: Api, document: Json, namespace: str | None = None, *, dry_run: bool = False) -> None:
    """Server-side apply of one document, in `namespace` if that is given."""
    metadata = document["metadata"]
    namespace = namespace or metadata.get("namespace")
    root = "/api/v1" if document["apiVersion"] == "v1" else f"/apis/{document['apiVersion']}"
    place = f"/namespaces/{namespace}" if namespace else ""
    path = f"{root}{place}/{PLURALS[document['kind']]}/{metadata['name']}"
    dry = "&dryRun=All&fieldValidation=Strict" if dry_run else ""
    answer = api("PATCH", f"{path}?fieldManager=test&force=true{dry}", document, APPLY)
    assert answer.status in {200, 201}, (path, answer)


@pytest.fixture
def in_a_pod(control_plane: ControlPlane, tmp_path: Path, make_operator: MakeOperator) -> Callable[..., Operator]:
    """Starts the operator as a pod with the shipped service account would run it."""
    stand_in = PodStandIn(control_plane, tmp_path / "serviceaccount", make_operator)
    return stand_in.start


def live(world: World) -> None:
    """Run a job through its whole life, to use every right that the operator may need."""
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(2, "ExitCode")}, ttlSecondsAfterFinished=1)
    pods = world.wait_pods("j-master-0", "j-worker-0", "j-worker-1")
    world.run_pod(*pods)
    world.wait_condition("Running")
    world.end_pod("j-worker-1", 137)
    world.wait_successor("j-worker-1", pods["j-worker-1"]["metadata"]["uid"])
    world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}})
    world.wait_pods("j-master-0", "j-worker-0")
    for _ in range(2):  # the second event of the same text is a patch of the first
        world.patch_run_policy(suspend=True)
        world.wait_pods()
        world.patch_run_policy(suspend=False)
        world.wait_pods("j-master-0", "j-worker-0")
    world.end_pod("j-master-0")
    world.wait(lambda: world.try_to("GET", f"{JOBS}/j").status == 404, "the deletion of the job")
    for reason in ("PyTorchJobSucceeded", "SuccessfulDeletePod"):
        world.wait(partial(world.events, reason), f"event {reason}")


def live_as_any_kind(api: Api, namespace: str) -> None:
    """Run a job of each kind to its end, including the requests that only that kind makes."""
    for framework in FRAMEWORKS.values():
        live_as(KindWorld(api, framework, namespace), framework.name)
    scale_an_elastic_job(KindWorld(api, FRAMEWORKS["PyTorchJob"], namespace))
    find_the_names_taken(KindWorld(api, FRAMEWORKS["PyTorchJob"], namespace))
    begin_a_large_job(KindWorld(api, FRAMEWORKS["TFJob"], namespace))


def live_as(stage: KindWorld, name: str) -> None:
    row = ROWS[stage.framework.kind]
    roles = {type_: stage.role(count, None) for type_, count in row.counts.items()}
    live_as_applied(stage, stage.jobs, stage.body(name, roles, runPolicy={"suspend": True}))
    stage.create(name, row.counts, "ExitCode", runPolicy={"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 0})
    stage.wait(lambda: set(stage.pods_of(name)) == set(row.names(name)), f"pods of {name}")
    stage.run_pod(*row.names(name))
    one = f"{name}-{row.pod}"
    for resource in ("pods", "services"):
        orphan(stage, f"{CORE}/{resource}/{one}")
    uid = stage.pods()[one]["metadata"]["uid"]
    stage.end_pod(one, 137)
    stage.wait_successor(one, uid)
    for end in row.ends:
        stage.end_pod(f"{name}-{end}")
    stage.wait(lambda: not stage.pods_of(name), f"no pods of {name}")
    stage.wait(lambda: stage.try_to("GET", f"{stage.jobs}/{name}").status == 404, f"the deletion of {name}")


def orphan(stage: KindWorld, path: str) -> None:
    """The job adopts a child that has lost its owner."""
    stage.ask("PATCH", path, {"metadata": {"ownerReferences": None}}, MERGE)
    stage.wait(lambda: stage.ask("GET", path)["metadata"].get("ownerReferences"), f"an owner of {path}")


def find_the_names_taken(stage: KindWorld) -> None:
    """A pod and a Service of others, which the caches do not show, have the names that the job needs."""
    metadata = {"name": "taken-master-0"}
    container = {"name": "other", "image": "none"}
    stage.ask("POST", f"{CORE}/pods", {"metadata": metadata, "spec": {"containers": [container]}})
    stage.ask("POST", f"{CORE}/services", {"metadata": metadata, "spec": {"ports": [{"port": 1}]}})
    stage.create("taken", {"Master": 1})
    for reason in ("FailedCreatePod", "FailedCreateService"):
        stage.wait(partial(stage.events, reason), f"event {reason}")
    stage.ask("DELETE", f"{stage.jobs}/taken")


def scale_an_elastic_job(stage: KindWorld) -> None:
    """The autoscaler of the job is created, updated and deleted."""

    def scalers() -> list[Json]:
        path = "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
        found: list[Json] = stage.ask("GET", path)["items"]
        return found

    target = {"type": "Utilization", "averageUtilization": 80}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    policy = {"minReplicas": 1, "maxReplicas": 2, "metrics": [metric]}
    stage.create("elastic", {"Worker": 1}, elasticPolicy=policy)
    stage.wait(lambda: [one["metadata"]["name"] for one in scalers()] == ["elastic"], "the autoscaler")
    stage.patch_job({"elasticPolicy": {"maxReplicas": 5}}, "elastic")
    stage.wait(lambda: scalers()[0]["spec"]["maxReplicas"] == 5, "its update")
    stage.patch_job({"runPolicy": {"suspend": True}}, "elastic")
    stage.wait(lambda: not scalers(), "its end")


def begin_a_large_job(stage: KindWorld) -> None:
    """Create a job whose cluster exceeds an environment variable, so that all pods share a ConfigMap; delete it once
    that exists."""
    name = "l" * 40
    stage.create(name, {"Worker": 2000})
    pod = stage.wait(lambda: stage.pods_of(name).get(f"{name}-worker-0"), "the first pod")
    shared = stage.ask("GET", f"{CORE}/configmaps/{name}-tf-config")
    stage.ask("DELETE", f"{stage.jobs}/{name}")
    container = pod["spec"]["containers"][0]
    config = json.loads(container["env"][0]["value"])
    assert config["task"] == {"type": "worker", "index": 0}
    volume = next(one for one in pod["spec"]["volumes"] if one.get("configMap", {}).get("name") == f"{name}-tf-config")
    mount = next(one for one in container["volumeMounts"] if one["name"] == volume["name"])
    folder, _, file = config["cluster"].rpartition("/")
    assert folder == mount["mountPath"]
    assert len(json.loads(shared["data"][file])["worker"]) == 2000


GANG_SCHEDULERS = ((VOLCANO_GROUPS, "volcano"), (PLUGIN_GROUPS, "my-scheduler"))
"""Their PodGroups, and the values of the flag."""


def live_in_gangs(world: World, start: Callable[[str], Operator]) -> None:
    """Run a job under each gang scheduler."""
    for resource, scheduler in GANG_SCHEDULERS:
        stage = Stage(world, resource)
        stage.install()
        operator = start(f"--gang-scheduler-name={scheduler}")
        live_in_a_gang(stage, scheduler)
        operator.end()
        stage.remove()


def live_in_a_gang(stage: Stage, name: str) -> None:
    """The PodGroup of a job is created, updated and deleted."""
    world = stage.world
    world.create_job(name, {"Worker": replicas(2)})
    stage.wait_group(name)
    stage.admit(name=name)
    for index in range(2):
        world.wait_pod(f"{name}-worker-{index}")
    edit = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}}
    world.ask("PATCH", f"{JOBS}/{name}", edit, MERGE)
    world.wait(lambda: stage.group(name)["spec"]["minMember"] == 1, "the update of the PodGroup")
    world.patch_run_policy(name, suspend=True)
    world.wait(lambda: not stage.group(name), "the deletion of the PodGroup")
    world.ask("DELETE", f"{JOBS}/{name}")


@pytest.fixture
def prometheus_operator(control_plane: ControlPlane) -> None:
    """Adds the CRDs of the Prometheus operator."""
    for definition in yaml.safe_load_all((Path(__file__).parent / "prometheus-operator.yaml").read_text()):
        apply(control_plane.api, definition)
        path = f"/apis/monitoring.coreos.com/v1/{definition['spec']['names']['plural']}"
        served = wait_until(partial(lambda path: control_plane.api("GET", path).status == 200, path), PATIENCE)
        assert served, path


def test_every_manifest_passes_a_server_side_dry_run(
    control_plane: ControlPlane, prometheus_operator: None, kubectl: str, tmp_path: Path
):
    """Every overlay and component, with strict validation of fields. An object that several overlays share is sent
    once."""
    unique = {}
    of_administrators = (CRDS, [name for name, fits in PAIRS.items() if fits[CRDS] == YES])
    for number, (overlay, components) in enumerate([of_administrators, *combinations()]):
        for document in combine(kubectl, tmp_path / str(number), overlay, components):
            unique[json.dumps(document, sort_keys=True)] = document
    assert {document["kind"] for document in unique.values()} == set(PLURALS)
    control_plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": "kubeflow"}})
    for document in unique.values():
        apply(control_plane.api, document, dry_run=True)


UNSEEN_OF_GANGS = {
    # a PodGroup is read from the API server only if the cache may be behind; tests/controllers shows these requests
    *(Right(groups.group, "podgroups", "get") for groups, _ in GANG_SCHEDULERS),
    # this API server does not serve these, and accepts no CRD for them; e2e/schedulers sees these requests
    *(
        Right(kind.group, kind.plural, verb)
        for kind in (KUBE_GROUPS, KUBE_WORKLOADS)
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
}
UNSEEN = {
    # an admission plugin checks these
    *(Right("kubeflow.org", f"{framework.resource.plural}/finalizers", "update") for framework in FRAMEWORKS.values()),
    Right("kubeflow.org", "mpijobs/finalizers", "update"),
    # the API server lets the operator grant launchers only what it may do itself
    Right("", "pods/exec", "create"),
    *UNSEEN_OF_GANGS,
}
"""Rights that no request of these jobs needs."""


def assert_exact_rights(
    plane: ControlPlane, home: str, roles: list[Json], denied: frozenset[str] = frozenset()
) -> None:
    """The operator has used every right of `roles`, and only requests for the resources `denied` were denied."""
    used = requested(plane, home, NAME)
    # this API server streams the initial state; one without watch-list is asked for lists
    used |= {right._replace(verb="list") for right in used if right.verb == "watch"}
    unused = sorted(granted(roles) - UNSEEN - used)
    assert not unused, "granted and never used: " + ", ".join(map("/".join, unused))
    assert {right.resource for right in requested(plane, home, NAME, "forbid")} == denied


def test_as_installed(
    control_plane: ControlPlane,
    quiet_world: World,
    alone: None,
    in_a_pod: Callable[..., Operator],
    kubectl: str,
    tmp_path: Path,
):
    home = f"{quiet_world.namespace}-home"
    documents = combine(kubectl, tmp_path / "overlay", "standalone", ["mpi-exec", "mpi-ssh"], namespace=home)
    hooks = Webhooks(World(control_plane.api, home))  # instead of a Service whose address nothing routes
    for document in documents:
        if document["kind"] != "Service" and "webhooks" not in document:
            apply(control_plane.api, document)
    deployment = deployment_of(documents)
    # the memory for objects of other tests is not to be measured
    resting = in_a_pod(home, *flags_of(deployment), f"--namespace={home}")
    memory = resting.resident_mib()
    resting.end()
    operator = in_a_pod(home, *flags_of(deployment), "--leader-elect")
    hooks.install(operator.webhook_port, "Fail")
    hooks.wait_injected()
    hooks.wait_called()
    hooks.delete_secret()
    hooks.wait_injected()
    hooks.empty_secret()
    hooks.wait_injected()
    hooks.remove()
    live(quiet_world)
    live_as_any_kind(control_plane.api, quiet_world.namespace)
    live_as_mpi(quiet_world)
    live_as_dijob(quiet_world)
    assert "permission denied" not in operator.text()
    lease = control_plane.api("GET", f"/apis/coordination.k8s.io/v1/namespaces/{home}/leases").body["items"]
    assert [one["spec"]["leaseDurationSeconds"] for one in lease] == [15]
    operator.end()
    live_in_gangs(quiet_world, partial(in_a_pod, home, *flags_of(deployment)))
    assert_exact_rights(control_plane, home, documents)
    assert memory < 70, f"{memory:.0f} MiB at rest"


def test_in_one_namespace_without_any_cluster_role(
    control_plane: ControlPlane,
    quiet_world: World,
    alone: None,
    in_a_pod: Callable[..., Operator],
    kubectl: str,
    tmp_path: Path,
):
    namespace = quiet_world.namespace
    transports = ["mpi-exec-namespaced", "mpi-ssh-namespaced"]
    documents = combine(kubectl, tmp_path / "overlay", "namespaced", transports, namespace=namespace)
    for document in documents:
        apply(control_plane.api, document)
    flags = flags_of(deployment_of(documents))
    # each pass of the test has an operator of its own, so that none waits for the lease of the one before
    operator = in_a_pod(namespace, *flags)
    live(quiet_world)
    live_as_any_kind(control_plane.api, quiet_world.namespace)
    live_as_mpi(quiet_world)
    live_as_dijob(quiet_world)
    assert "permission denied" not in operator.text()
    operator.end()
    live_in_gangs(quiet_world, partial(in_a_pod, namespace, *flags))
    assert_exact_rights(control_plane, namespace, documents, frozenset({"priorityclasses"}))
    # with webhooks, but without the permission for their certificates, it is ready too
    operator = in_a_pod(namespace, *(flag for flag in flags if "webhook" not in flag))
    quiet_world.create_job("k", {"Worker": replicas(1)})
    quiet_world.wait_pod("k-worker-0")
    assert operator.text().count("no permission to maintain webhook certificates") == 1
    assert "list or watch failed" not in operator.text()
