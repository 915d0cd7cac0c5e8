"""MPIJobs over ssh whose launchers expire, are deleted or cannot be created, on a real kube-apiserver with the Job
controller, the garbage collector and the deletion of namespaces and expired Jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from e2e.cluster.controlplane import ControlPlane
from tests.kustomize import MANIFESTS
from tests.server.process import Operator
from tests.server.test_mpi import V1, V2, MpiWorld, batch, jobs, mpi_job
from tests.server.test_permissions import RBAC, Account
from tests.server.world import CORE, MERGE, Json, replicas
from trainop.kinds.mpi.ssh.finish import FINISH

MakeOperator = Callable[..., Operator]
NUMBERS = itertools.count(1)
NAMESPACES = "/api/v1/namespaces"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture
def world(control_plane_with_controllers: ControlPlane) -> MpiWorld:
    return MpiWorld(control_plane_with_controllers.api, f"mpifaults{next(NUMBERS)}")


@pytest.fixture
def operator(control_plane_with_controllers: ControlPlane, world: MpiWorld, make_operator: MakeOperator) -> Operator:
    """An operator for the namespace of the test alone, which the test may stop."""
    flags = ("--enable-scheme=MPIJob", f"--namespace={world.namespace}", "--webhook-server-port=0")
    made = make_operator(control_plane_with_controllers.kubeconfig, *flags)
    made.start()
    return made


def launcher(world: MpiWorld, name: str = "j") -> Json:
    """The launcher's Job; empty if there is none."""
    answer = world.try_to("GET", batch(f"{name}-launcher"))
    return answer.body if answer.status == 200 else {}


def run(world: MpiWorld, **policy: object) -> str:
    """A running job; returns the pod of its launcher."""
    world.create(mpi_job("j", V2, 1, run=dict(policy)))
    pod = world.wait_launcher("j")
    world.ready("j-worker-0", pod)
    world.wait_state("j", "Running")
    return pod


def test_a_launcher_that_expires_while_the_operator_is_stopped(world: MpiWorld, operator: Operator):
    pod = run(world, ttlSecondsAfterFinished=1)
    assert launcher(world)["metadata"]["finalizers"] == [FINISH]
    assert operator.end() == 0
    world.end_pod(pod)
    world.wait(lambda: "deletionTimestamp" in launcher(world)["metadata"], "the expiry of the launcher")
    uid = launcher(world)["metadata"]["uid"]
    operator.start()
    world.wait_state("j", "Succeeded")
    world.wait(lambda: not launcher(world), "the end of the launcher")
    assert world.mpi("j")["status"]["replicaStatuses"]["Launcher"] == {"succeeded": 1}

    def created() -> set[str]:
        events = [each["involvedObject"] for each in world.events("SuccessfulCreate")]
        return {each["uid"] for each in events if each["name"] == "j-launcher"}

    assert world.wait(created, "the event of the launcher") == {uid}


@pytest.mark.parametrize(("propagation", "present"), [("Background", False), ("Foreground", True), ("Orphan", True)])
def test_no_finalizer_outlives_the_job(world: MpiWorld, operator: Operator, propagation: str, present: bool):
    run(world, ttlSecondsAfterFinished=3600)
    if not present:
        operator.end()
    world.ask("DELETE", f"{jobs(V1, 'j')}?propagationPolicy={propagation}")
    if not present:
        operator.start()
    world.wait(lambda: not world.exists(jobs(V1, "j")), "the end of the job")
    world.wait(lambda: FINISH not in launcher(world).get("metadata", {}).get("finalizers", ()), "the release")
    if propagation == "Orphan":
        assert launcher(world)


def test_a_launcher_that_is_deleted_by_hand_starts_again(world: MpiWorld, operator: Operator):
    run(world, ttlSecondsAfterFinished=3600)
    before = launcher(world)["metadata"]["uid"]
    world.ask("DELETE", f"{batch('j-launcher')}?propagationPolicy=Background")
    world.wait(lambda: launcher(world).get("metadata", {}).get("uid") not in (None, before), "a new launcher")
    assert launcher(world)["metadata"]["finalizers"] == [FINISH]
    assert ("Failed", "True") not in world.state("j")


@pytest.mark.case("mpi-v2beta1-39", "d")
def test_without_the_webhook_jobs_and_namespaces_can_be_deleted(world: MpiWorld, operator: Operator):
    """Even with a webhook whose failure policy is Fail, since nothing has to be converted."""
    for name, version in (("a", V1), ("b", V2)):
        world.create(mpi_job(name, version, run={"ttlSecondsAfterFinished": 3600}))
    world.wait(lambda: "a-launcher" in world.pods() and launcher(world, "b"), "both launchers")
    dead = {
        "name": "dead.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [
            {
                "apiGroups": ["kubeflow.org"],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["mpijobs"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    world.ask("POST", WEBHOOKS, {"metadata": {"name": world.namespace}, "webhooks": [dead]})
    try:
        creating = partial(world.try_to, "POST", f"{jobs(V2)}?dryRun=All", mpi_job("c", V2))
        world.wait(lambda: creating().status == 500, "the webhook's failure")
        assert {each["metadata"]["name"] for each in world.ask("GET", jobs(V1))["items"]} == {"a", "b"}
        world.ask("DELETE", jobs(V1, "b"))
        gone = (f"{CORE}/secrets/b-ssh", f"{CORE}/configmaps/b-config", f"{CORE}/services/b", batch("b-launcher"))
        world.wait(lambda: not any(world.exists(path) for path in gone), "the garbage collector")
        world.ask("DELETE", f"{NAMESPACES}/{{namespace}}")

        def namespace_is_gone() -> bool:
            for pod in world.pods():  # there is no kubelet
                world.try_to("DELETE", f"{CORE}/pods/{pod}", {"gracePeriodSeconds": 0})  # others delete it, too
            return not world.exists(f"{NAMESPACES}/{{namespace}}")

        world.wait(namespace_is_gone, "the deletion of the namespace")
    finally:
        world.ask("DELETE", f"{WEBHOOKS}/{world.namespace}")


@pytest.fixture
def account(control_plane: ControlPlane, alone: None, tmp_path: Path) -> tuple[MpiWorld, Account]:
    """The base role only, on an API server without a Job controller."""
    del alone
    world = MpiWorld(control_plane.api, f"mpirights{next(NUMBERS)}")
    return world, Account(world, control_plane, tmp_path, "nothing", "nothing")


def add_components(world: MpiWorld) -> None:
    """Grants the rights of both transports."""
    base = yaml.safe_load_all((MANIFESTS / "base" / "rbac.yaml").read_text(encoding="utf-8"))
    rules: list[Json] = next(each for each in base if each["kind"] == "ClusterRole")["rules"]
    for name in ("mpi-exec", "mpi-ssh"):
        roles = (MANIFESTS / "components" / name / f"{name}.yaml").read_text(encoding="utf-8")
        rules += [rule for each in yaml.safe_load_all(roles) for rule in each.get("rules", ())]
    world.ask("PATCH", f"{RBAC}/clusterroles/{world.namespace}-operator", {"rules": rules}, MERGE)


def test_without_the_components_mpi_jobs_wait_and_other_jobs_run(
    account: tuple[MpiWorld, Account], make_operator: MakeOperator
):
    world, rights = account
    operator = make_operator(rights.kubeconfig, f"--namespace={world.namespace}", "--webhook-server-port=0")
    operator.start()
    world.create(mpi_job("e", V1, 1))
    world.create(mpi_job("s", V2, 1))
    world.create_job("p", {"Worker": replicas(1)})
    world.wait(lambda: "p-worker-0" in world.pods(), "the pod of the other kind")

    def is_announced(name: str, component: str) -> bool:
        events: list[Json] = world.ask("GET", f"{CORE}/events")["items"]
        return any(
            each["involvedObject"]["name"] == name
            and each["reason"].startswith("FailedCreate")
            and each["message"].endswith(f"which its component {component} grants")
            for each in events
        )

    for name, component in (("e", "mpi-exec"), ("s", "mpi-ssh")):
        world.wait(partial(is_announced, name, component), f"the event of {name}")
        world.wait_state(name, "Created")
    assert {*world.pods()} == {"p-worker-0"}
    assert operator.probe("/readyz")[0] == 200
    assert operator.probe("/healthz")[0] == 200

    add_components(world)
    world.wait(lambda: {"e-launcher", "e-worker-0", "s-worker-0"} <= world.pods().keys(), "the pods")
    world.wait(lambda: launcher(world, "s"), "the launcher's Job")


def test_a_job_waits_while_the_job_controller_is_away(account: tuple[MpiWorld, Account], make_operator: MakeOperator):
    """Its launcher has no pod. The job is neither Running nor failed, and follows the Job once that has a status."""
    world, rights = account
    add_components(world)
    make_operator(rights.kubeconfig, f"--namespace={world.namespace}", "--webhook-server-port=0").start()
    world.create(mpi_job("s", V2, 1))
    world.wait(lambda: launcher(world, "s") and "s-worker-0" in world.pods(), "the children")
    world.ready("s-worker-0")
    counts = {"Launcher": {}, "Worker": {"active": 1}}
    world.wait(lambda: world.mpi("s").get("status", {}).get("replicaStatuses") == counts, "the counters")
    assert world.state("s") == [("Created", "True")]
    moment = "2026-01-01T00:00:00Z"
    failed = [
        {"type": type_, "status": "True", "reason": "r", "message": "m", "lastTransitionTime": moment}
        for type_ in ("FailureTarget", "Failed")
    ]
    status = {"status": {"conditions": failed, "startTime": moment}}
    world.ask("PATCH", f"{batch('s-launcher')}/status", status, MERGE)
    world.wait_state("s", "Failed")


def test_a_launcher_on_a_lost_node_is_replaced_and_counts(world: MpiWorld, operator: Operator):
    """A pod whose node does not answer is terminating for ever. It is replaced, and counts towards the back-off
    limit, as with mpi-operator v0.8.0."""
    node = f"lost-{world.namespace}"
    world.ask("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    body = mpi_job("j", V2, 1, run={"backoffLimit": 1})
    template = body["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    template |= {"nodeName": node, "terminationGracePeriodSeconds": 1}
    world.create(body)
    first = world.wait_launcher("j")
    world.ready("j-worker-0", first)
    world.wait_state("j", "Running")
    assert launcher(world)["spec"]["podReplacementPolicy"] == "Failed"
    world.ask("DELETE", f"{CORE}/pods/{first}")

    def other() -> str:
        found = world.ask("GET", f"{CORE}/pods?labelSelector=job-name=j-launcher")["items"]
        return next((pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]), "")

    second = world.wait(other, "another launcher")
    assert "deletionTimestamp" in world.ask("GET", f"{CORE}/pods/{first}")["metadata"]
    world.wait(lambda: launcher(world)["status"].get("failed") == 1, "the failure to be counted")
    assert ("Failed", "True") not in world.state("j")
    world.ask("DELETE", f"{CORE}/pods/{second}")

    def reasons() -> set[str]:
        """Failed itself waits for the end of the pods."""
        conditions = launcher(world)["status"].get("conditions", ())
        return {each["reason"] for each in conditions if each["type"] == "FailureTarget"}

    world.wait(lambda: reasons() == {"BackoffLimitExceeded"}, "the back-off limit")
