"""The operator as a process: endpoints, restarts, signals, an API server outage, failures at the start."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from e2e.cluster.places import default_data
from tests.patience import PATIENCE
from tests.server.process import Operator
from tests.server.world import Json, World, replicas

MakeOperator = Callable[..., Operator]


def test_endpoints(operator: Operator):
    assert operator.probe("/healthz")[0] == 200
    assert operator.probe("/readyz")[0] == 200
    assert operator.probe("/healthz?verbose")[1].endswith("healthz check passed\n")
    for series in (
        'controller_runtime_max_concurrent_reconciles{controller="pytorchjob-controller"}',
        'workqueue_depth{controller="pytorchjob-controller",name="pytorchjob-controller"}',
        'controller_runtime_reconcile_errors_total{controller="pytorchjob-controller"}',
    ):
        assert operator.metric(series) is not None, series


def test_jobs_created_are_counted_once_also_across_a_restart(world: World, operator: Operator):
    """The metrics part of job-engine-40."""
    series = f'training_operator_jobs_created_total{{framework="pytorch",job_namespace="{world.namespace}"}}'
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(2)})
    world.wait_pods("j-master-0", "j-worker-0", "j-worker-1")
    world.wait_condition("Created")
    world.wait(lambda: operator.metric(series) == 1, "the counter")
    assert operator.end() == 0
    operator.start()
    world.run_pod("j-master-0")
    world.wait_condition("Running")
    assert not operator.metric(series)


def test_killed_in_the_middle_of_things(world: World, operator: Operator):
    for number in range(5):
        world.create_job(f"j{number}", {"Worker": replicas(4)})
    operator.end(signal.SIGKILL)
    operator.start()
    names = {f"j{number}-worker-{index}" for number in range(5) for index in range(4)}
    pods = world.wait_pods(*names)
    for name in names:
        world.run_pod(name)
    for number in range(5):
        world.wait_condition("Running", f"j{number}")
    uids = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
    operator.end(signal.SIGKILL)
    for name in names:
        world.end_pod(name)
    operator.start()
    for number in range(5):
        world.wait_condition("Succeeded", f"j{number}")
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods().items()} == uids
    assert world.events("FailedCreatePod") == []


def test_sigterm_ends_with_zero(world: World, operator: Operator):
    world.create_job("j", {"Worker": replicas(1)})
    world.wait_pods("j-worker-0")
    assert operator.end(signal.SIGTERM) == 0
    assert "Traceback" not in operator.text()


def test_the_api_server_restarts(world: World, operator: Operator, control_plane: ControlPlane):
    world.create_job("j", {"Worker": replicas(1)})
    world.wait_pods("j-worker-0")
    control_plane.stop("kube-apiserver", patience=0)
    world.settle(2)
    assert operator.running
    assert operator.probe("/healthz")[0] == 200
    control_plane.start("kube-apiserver")
    world.run_pod("j-worker-0")
    world.wait_condition("Running")
    world.create_job("k", {"Worker": replicas(1)})
    world.wait(lambda: "k-worker-0" in world.pods(), "a pod of a new job")


def test_one_bad_job_does_not_hold_up_others(world: World, operator: Operator):
    bad = replicas(1)
    bad["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 70000}]
    world.create_job("bad", {"Worker": bad})
    failed = world.wait_condition("Failed", "bad")
    assert "70000" in failed["message"]
    world.create_job("good", {"Worker": replicas(1)})
    world.wait(lambda: "good-worker-0" in world.pods(), "the pod of the good job")
    errors = operator.metric('controller_runtime_reconcile_errors_total{controller="pytorchjob-controller"}')
    assert errors is not None
    world.settle(1)
    later = operator.metric('controller_runtime_reconcile_errors_total{controller="pytorchjob-controller"}')
    assert later is not None
    assert later - errors <= 1  # no hot loop


def test_one_namespace_only(control_plane: ControlPlane, quiet_world: World, alone: None, make_operator: MakeOperator):
    elsewhere = World(control_plane.api, f"{quiet_world.namespace}-other")
    mine = make_operator(control_plane.kubeconfig, f"--namespace={quiet_world.namespace}", "--enable-scheme=pytorchjob")
    mine.start()
    elsewhere.create_job("j", {"Worker": replicas(1)})
    quiet_world.create_job("j", {"Worker": replicas(1)})
    quiet_world.wait_pods("j-worker-0")
    quiet_world.settle()
    assert elsewhere.pods() == {}


def one_line(operator: Operator, *wanted: str) -> None:
    """Check that the log has one error line and no traceback."""
    text = operator.text()
    assert "Traceback" not in text
    assert any(all(want in line for want in wanted) for line in text.splitlines()), text


def test_a_kubeconfig_that_is_not_there(tmp_path: Path, make_operator: MakeOperator):
    operator = make_operator(tmp_path / "nowhere.kubeconfig")
    operator.start(wait=False)
    assert operator.exit_code() == 1
    one_line(operator, "nowhere.kubeconfig")


def test_a_kubeconfig_that_is_no_kubeconfig(tmp_path: Path, make_operator: MakeOperator):
    path = tmp_path / "bad.kubeconfig"
    path.write_text("][ nonsense")
    operator = make_operator(path)
    operator.start(wait=False)
    assert operator.exit_code() == 1
    one_line(operator, "bad.kubeconfig")


def test_an_api_server_that_is_away_at_the_start(
    control_plane: ControlPlane,
    tmp_path: Path,
    make_operator: MakeOperator,
    quiet_world: World,
    alone: None,
):
    control_plane.stop("kube-apiserver", patience=0)
    try:
        operator = make_operator(control_plane.kubeconfig)
        operator.start(wait=False)
        assert wait_until(lambda: operator.probe("/healthz")[0] == 200, PATIENCE), operator.text()
        assert wait_until(lambda: operator.probe("/readyz")[0] == 500, PATIENCE), operator.text()
        time.sleep(3)  # it keeps retrying
        assert operator.running, operator.text()
        assert operator.probe("/readyz")[0] == 500
        assert "Traceback" not in operator.text()
    finally:
        control_plane.start("kube-apiserver")
    quiet_world.create_job("j", {"Worker": replicas(1)})
    quiet_world.wait(quiet_world.pods, "a pod")


def test_credentials_that_are_refused(control_plane: ControlPlane, tmp_path: Path, make_operator: MakeOperator):
    config = json.loads(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    path = tmp_path / "wrong.kubeconfig"
    path.write_text(json.dumps(config))
    operator = make_operator(path)
    operator.start(wait=False)
    operator.wait_text("nauthorized")
    one_line(operator, "nauthorized")
    assert operator.probe("/readyz")[0] != 200


def test_a_port_in_use(control_plane: ControlPlane, operator: Operator, make_operator: MakeOperator):
    taken = operator.probe_url.rpartition(":")[2]
    second = make_operator(control_plane.kubeconfig, f"--health-probe-bind-address=127.0.0.1:{taken}")
    second.start(wait=False)
    assert second.exit_code() == 1
    one_line(second, taken)


def test_unknown_flags_and_schemes(control_plane: ControlPlane, make_operator: MakeOperator):
    operator = make_operator(control_plane.kubeconfig, "--no-such-flag=1")
    operator.start(wait=False)
    assert operator.exit_code() == 2
    one_line(operator, "no-such-flag")
    operator = make_operator(control_plane.kubeconfig, "--enable-scheme=dummyjob")
    operator.start(wait=False)
    assert operator.exit_code() != 0
    one_line(operator, "scheme dummyjob is not supported yet")


@pytest.fixture
def bare_plane(tmp_path: Path):
    """A control plane without any of our CRDs."""
    plane = ControlPlane(default_data(f"pytest-{os.getpid()}-bare"), die_with_parent=True)
    plane.up()
    yield plane
    plane.down()


def test_a_crd_that_comes_later(
    control_plane: ControlPlane, bare_plane: ControlPlane, make_operator: MakeOperator, crds: list[Json]
):
    world = World(bare_plane.api, "late")
    pod = {"MY_POD_NAMESPACE": world.namespace, "MY_POD_NAME": "training-operator-0", "MY_POD_UID": "0-1-2"}
    operator = make_operator(bare_plane.kubeconfig, "--webhook-server-port=0", "--zap-devel=false", environment=pod)
    operator.start(wait=False)
    operator.wait_text("crds are not installed")
    assert operator.running, operator.text()
    install = "kubectl apply --server-side -k manifests/crds"
    (entry,) = [json.loads(line) for line in operator.text().splitlines() if "crds are not installed" in line]
    assert entry["install"] == install
    names = {crd["metadata"]["name"] for crd in crds}
    assert set(entry["crds"]) == names - {"aggregatorconfigs.diengine.opendilab.org"}, "those of its kinds"
    (event,) = world.wait(lambda: world.events("CrdsNotInstalled"), "the event about the operator's pod")
    assert install in event["message"]
    assert event["involvedObject"]["name"] == "training-operator-0"
    for crd in crds:
        assert bare_plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).status == 201
    world.wait(lambda: world.try_to("GET", "/apis/kubeflow.org/v1/pytorchjobs").status == 200, "the CRD")
    world.create_job("j", {"Worker": replicas(1)})
    world.wait(world.pods, "a pod")
