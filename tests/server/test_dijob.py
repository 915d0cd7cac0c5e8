"""DIJob on a real kube-apiserver, with the garbage collector of kube-controller-manager, by the acceptance cases of
DI-orchestrator."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.kinds.dijob_world import MAIN, RUNS, ddp_pods, dijob, ended, template
from tests.server.process import Operator
from tests.server.world import CORE, MERGE, Json, World
from tests.upstream import Upstream
from trainop.kinds.dijob.names import Role
from trainop.kinds.dijob.pods import PodOptions, aggregator_owner, build_pod, read_job

NUMBERS = itertools.count(1)
JOBS = "/apis/diengine.opendilab.org/v1alpha1/namespaces/{namespace}/dijobs"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


class DiWorld(World):
    """One namespace with DIJobs. The tests play di-server and the kubelet."""

    def create(self, name: str = "a", **fields: Any) -> Json:
        body = dijob(name=name, **fields)
        made: Json = self.ask("POST", JOBS, {**body, "metadata": {"name": name}})
        return made

    def job(self, name: str = "a") -> Json:
        found: Json = self.ask("GET", f"{JOBS}/{name}")
        return found

    def phase(self, name: str = "a") -> str:
        return str(self.status(name).get("phase", ""))

    def states(self, name: str = "a") -> list[tuple[str, str]]:
        return [(each["type"], each["status"]) for each in self.status(name).get("conditions", ())]

    def counters(self, name: str = "a") -> Json:
        found = self.status(name).get("replicaStatus", {})
        return {role: entry for role, entry in found.items() if entry}

    def wait_phase(self, phase: str, name: str = "a") -> None:
        self.wait(lambda: self.phase(name) == phase, f"phase {phase} of {name}")

    def add(self, role: Role, suffix: str, phase: str = "Running") -> str:
        """A replica that di-server has created."""
        return self._post(build_pod(read_job(self.job()), role, template(), PodOptions("s"), suffix=suffix), phase)

    def add_ddp(self, gpus: list[int]) -> list[str]:
        """An aggregator and its ddp learners."""
        aggregator = self.add(Role.AGGREGATOR, "xxxxx")
        owner = aggregator_owner(aggregator, self.pods()[aggregator]["metadata"]["uid"])
        return [aggregator, *(self._post(pod, "Running") for pod in ddp_pods(self.job(), owner, gpus))]

    def _post(self, pod: Json, phase: str) -> str:
        name: str = self.ask("POST", f"{CORE}/pods", pod)["metadata"]["name"]
        if phase != "Pending":
            self.set_pod(name, {"phase": phase})
        return name

    def set_states(self, pod: str, phase: str, states: Json) -> None:
        """The states of the containers, by name."""
        common = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [{**common, "name": name, "state": state} for name, state in states.items()]
        self.set_pod(pod, {"phase": phase, "containerStatuses": statuses})

    def remove(self, pod: str) -> None:
        self.ask("DELETE", f"{CORE}/pods/{pod}", {"gracePeriodSeconds": 0})

    def run(self, name: str = "a") -> None:
        """A job whose coordinator runs."""
        self.wait_pod(f"{name}-coordinator")
        self.set_pod(f"{name}-coordinator", {"phase": "Running"})
        self.wait_phase("Running", name)

    def finish(self, phase: str = "Succeeded") -> None:
        self.set_pod("a-coordinator", {"phase": phase})
        self.wait_phase(phase)

    def told(self) -> set[tuple[str, str]]:
        """Types and reasons of all events."""
        return {(event["type"], event["reason"]) for event in self.ask("GET", f"{CORE}/events")["items"]}

    def wait_told(self, type_: str, reason: str, message: str) -> None:
        def found() -> list[Json]:
            return [each for each in self.events(reason) if (each["type"], each["message"]) == (type_, message)]

        (event,) = self.wait(found, f"the event {reason}")
        assert event["source"]["component"] == "di-orchestrator"

    def describe(self) -> str:
        jobs = {job["metadata"]["name"]: job.get("status") for job in self.ask("GET", JOBS)["items"]}
        return f"pods {[*self.pods()]}, services {[*self.services()]}, jobs {jobs}, events {self.told()}"


@pytest.fixture(scope="module")
def di_operator(
    control_plane_with_controllers: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    operator = Operator(log, f"--kubeconfig={control_plane_with_controllers.kubeconfig}", "--enable-scheme=DIJob")
    operator.start()
    yield operator
    if operator.running:
        operator.end()


@pytest.fixture
def world(control_plane_with_controllers: ControlPlane, di_operator: Operator) -> DiWorld:
    if not di_operator.running:
        di_operator.start()
    return DiWorld(control_plane_with_controllers.api, f"di{next(NUMBERS)}")


def variables(pod: Json, container: int = 0) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][container]["env"]}


@pytest.mark.case("di-orchestrator-1", "abcd")
@pytest.mark.case("di-orchestrator-4", "ab")
@pytest.mark.case("di-orchestrator-5", "ab")
def test_a_serial_job_succeeds(world: DiWorld):
    job = world.create()
    pod = world.wait_pods("a-coordinator")["a-coordinator"]
    service = world.wait_services("a-coordinator")["a-coordinator"]
    assert (world.phase(), world.states()) == ("Created", [("Created", "True")])
    world.wait_told("Normal", "DIJobCreated", "DIJob a created")
    assert variables(pod) == {
        "COORDINATOR_PORT": "22273",
        "KUBERNETES_POD_NAMESPACE": world.namespace,
        "KUBERNETES_POD_NAME": "a-coordinator",
        "KUBERNETES_SERVER_URL": "di-server.di-system:8080",
        "KUBERNETES_COORDINATOR_URL": f"a-coordinator.{world.namespace}:22273",
    }
    assert pod["spec"]["restartPolicy"] == "Never"
    owner = {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "DIJob", "name": "a", "controller": True}
    assert pod["metadata"]["ownerReferences"] == [owner | {"uid": job["metadata"]["uid"]}]
    assert service["metadata"]["ownerReferences"] == pod["metadata"]["ownerReferences"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("di-port", 22273)]
    world.run()
    assert world.counters() == {"Coordinator": {"active": 1}}
    running = next(each for each in world.status("a")["conditions"] if each["type"] == "Running")
    assert (running["status"], running["reason"]) == ("True", "DIJobRunning")
    assert {reason for _, reason in world.told()} == {"DIJobCreated"}
    world.finish()
    assert world.states() == [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]
    assert world.counters() == {"Coordinator": {"succeeded": 1}}
    world.wait_told("Normal", "DIJobSucceeded", "DIJob a succeeded because coordinator succeeded")
    world.wait_services()
    world.settle()
    world.wait_pods("a-coordinator")


@pytest.mark.case("di-orchestrator-2", "ab")
def test_a_port_of_the_template(world: DiWorld):
    world.create(
        coordinator=template({"name": MAIN, "image": "i", "ports": [{"name": "di-port", "containerPort": 80}]})
    )
    pod = world.wait_pod("a-coordinator")
    assert [port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]] == [80]
    assert variables(pod)["COORDINATOR_PORT"] == "80"
    assert variables(pod)["KUBERNETES_COORDINATOR_URL"].endswith(":80")
    service = world.wait_services("a-coordinator")["a-coordinator"]
    assert [port["port"] for port in service["spec"]["ports"]] == [80]


@pytest.mark.case("di-orchestrator-3", "ab")
def test_a_template_without_the_main_container(world: DiWorld):
    world.create(coordinator=template({"name": "x", "image": "i"}, {"name": "y", "image": "i"}))
    pod = world.wait_pod("a-coordinator")
    assert all("ports" not in container for container in pod["spec"]["containers"])
    assert variables(pod, 0) == variables(pod, 1)
    service = world.wait_services("a-coordinator")["a-coordinator"]
    assert [port["port"] for port in service["spec"]["ports"]] == [22273]


@pytest.mark.case("di-orchestrator-6", "ab")
def test_a_coordinator_that_fails_at_once(world: DiWorld):
    world.create()
    world.wait_pod("a-coordinator")
    world.finish("Failed")
    assert world.states() == [("Created", "True"), ("Failed", "True")]
    world.wait_told("Warning", "DIJobFailed", Upstream("DIJob a failed because coordinator failed"))


@pytest.mark.case("di-orchestrator-7", "a")
def test_a_coordinator_that_the_api_server_refuses(world: DiWorld):
    def gpus(amount: str) -> Json:
        return template({"name": MAIN, "image": "i", "resources": {"limits": {"nvidia.com/gpu": amount}}})

    world.create(coordinator=gpus("1m"))
    (event,) = world.wait(lambda: world.events("FailedCreate"), "the event FailedCreate")
    assert event["type"] == "Warning"
    assert event["message"].startswith("Failed to create pod: a-coordinator error: ")
    assert (world.phase(), world.pods(), world.services()) == ("Created", {}, {})
    world.ask("PATCH", f"{JOBS}/a", {"spec": {"coordinator": {"template": gpus("1")}}}, MERGE)
    world.wait_pod("a-coordinator")


@pytest.mark.case("di-orchestrator-8", "abc")
def test_replicas_are_counted_and_do_not_decide(world: DiWorld):
    world.create(replicas=True)
    world.run()
    names = [world.add(Role.COLLECTOR, "aaaaa"), world.add(Role.COLLECTOR, "bbbbb", "Failed")]
    names += [world.add(Role.LEARNER, "ccccc", "Succeeded"), world.add(Role.LEARNER, "ddddd")]
    world.wait_services("a-coordinator", *names)
    counted = {"Collector": {"active": 1, "failed": 1}, "Learner": {"active": 1, "succeeded": 1}}
    world.wait(lambda: world.counters() == {"Coordinator": {"active": 1}, **counted}, "the counters")
    assert world.phase() == "Running"
    world.finish()
    assert world.status("a")["replicaStatus"] == {
        "Coordinator": {"succeeded": 1},
        "Collector": {"succeeded": 1, "failed": 1},
        "Learner": {"succeeded": 2},
        "Aggregator": {},
    }


@pytest.mark.case("di-orchestrator-9", "abc")
@pytest.mark.parametrize("policy", ["All", "Running", "None"])
def test_clean_pod_policies(world: DiWorld, policy: str):
    """The last row of the table in the specification; all rows are in `tests/kinds/test_dijob.py`."""
    world.create(replicas=True, cleanPodPolicy=policy)
    world.run()
    kept = [world.add(Role.COLLECTOR, "aaaaa", "Failed"), world.add(Role.LEARNER, "bbbbb", "Succeeded")]
    names = [world.add(Role.COLLECTOR, "ccccc"), world.add(Role.LEARNER, "ddddd"), *kept]
    world.wait_services("a-coordinator", *names)
    world.finish()
    world.wait_services()
    left = {"All": [], "Running": ["a-coordinator", *kept], "None": ["a-coordinator", *names]}[policy]
    world.wait_pods(*left)
    world.settle()
    world.wait_pods(*left)


@pytest.mark.case("di-orchestrator-10", "ab")
def test_policy_running_keeps_pods_that_crash(world: DiWorld):
    world.create(replicas=True)
    world.run()
    crashing = world.add(Role.COLLECTOR, "aaaaa")
    world.set_states(crashing, "Running", {MAIN: {"waiting": {"reason": "CrashLoopBackOff"}}})
    pending = world.add(Role.COLLECTOR, "bbbbb", "Pending")
    world.wait_services("a-coordinator", crashing, pending)
    world.finish()
    world.wait_pods("a-coordinator", crashing)


@pytest.mark.case("di-orchestrator-13", "ab")
def test_a_deleted_coordinator_comes_back(world: DiWorld):
    world.create()
    world.run()
    uid = world.pods()["a-coordinator"]["metadata"]["uid"]
    world.remove("a-coordinator")
    world.wait_successor("a-coordinator", uid)
    assert world.phase() == "Running"
    world.finish("Failed")


@pytest.mark.case("di-orchestrator-14", "ab")
def test_services_follow_their_pods(world: DiWorld):
    world.create(replicas=True)
    world.run()
    name = world.add(Role.COLLECTOR, "aaaaa")
    first = world.wait_services("a-coordinator", name)[name]
    world.ask("DELETE", f"{CORE}/services/{name}")

    def again() -> Json | None:
        found = world.services().get(name)
        return found if found and found["metadata"]["uid"] != first["metadata"]["uid"] else None

    assert world.wait(again, "a new service")["spec"]["ports"] == first["spec"]["ports"]
    world.remove(name)
    world.wait_services("a-coordinator")
    world.wait_pods("a-coordinator")


@pytest.mark.case("di-orchestrator-15", "a")
def test_a_pod_without_owner_is_ignored(world: DiWorld, di_operator: Operator):
    world.create()
    world.run()
    pod = build_pod(read_job(world.job()), Role.COORDINATOR, template(), PodOptions("s"))
    metadata = {"name": "stray", "labels": {**pod["metadata"]["labels"], "pod-name": "stray"}}
    world.ask("POST", f"{CORE}/pods", {**pod, "metadata": metadata})
    world.set_pod("stray", {"phase": "Failed"})
    world.settle()
    assert (world.phase(), [*world.services()], di_operator.running) == ("Running", ["a-coordinator"], True)
    world.finish()


@pytest.mark.case("di-orchestrator-16", "a")
def test_the_coordinator_of_a_former_job_is_waited_for(world: DiWorld):
    world.create()
    world.run()
    old = world.pods()["a-coordinator"]["metadata"]["uid"]
    world.ask("PATCH", f"{CORE}/pods/a-coordinator", {"metadata": {"finalizers": ["example.com/slow"]}}, MERGE)
    world.remove("a-coordinator")
    world.ask("DELETE", f"{JOBS}/a")
    world.wait(lambda: world.try_to("GET", f"{JOBS}/a").status == 404, "the end of the old job")
    job = world.create()
    world.wait_phase("Created")
    world.settle()
    assert world.pods()["a-coordinator"]["metadata"]["uid"] == old
    world.ask("PATCH", f"{CORE}/pods/a-coordinator", {"metadata": {"finalizers": None}}, MERGE)
    pod = world.wait_successor("a-coordinator", old)
    assert [owner["uid"] for owner in pod["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]


@pytest.mark.case("di-orchestrator-17", "a")
def test_a_job_that_is_deleted_in_the_foreground(world: DiWorld):
    world.create()
    world.run()
    world.ask("PATCH", f"{JOBS}/a", {"metadata": {"finalizers": ["example.com/slow"]}}, MERGE)
    world.ask("DELETE", f"{JOBS}/a", {"propagationPolicy": "Foreground"})
    world.try_to("DELETE", f"{CORE}/pods/a-coordinator", {"gracePeriodSeconds": 0})  # or the garbage collector does
    world.wait_pods()
    world.settle(2)
    assert world.pods() == {}
    assert "deletionTimestamp" in world.job()["metadata"]


@pytest.mark.case("di-orchestrator-18", "ab")
@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (137, "Failed")])
def test_side_cars_do_not_keep_a_job_alive(world: DiWorld, code: int, phase: str):
    world.create(coordinator=template({"name": "proxy", "image": "i"}, {"name": MAIN, "image": "i"}))
    world.run()
    world.set_states("a-coordinator", "Running", {"proxy": RUNS, MAIN: ended(code, "OOMKilled" if code else "")})
    world.wait_phase(phase)


@pytest.mark.case("di-orchestrator-19", "ab")
def test_priority_class_and_volumes(world: DiWorld):
    name = f"high-{world.namespace}"
    world.ask("POST", CLASSES, {"metadata": {"name": name}, "value": 10})
    volumes = [{"name": "x", "emptyDir": {}}, {"name": "y", "emptyDir": {}}]
    world.create(replicas=True, priorityClassName=name, volumes=volumes)
    world.run()
    names = [world.add(Role.COLLECTOR, "aaaaa"), world.add(Role.LEARNER, "bbbbb"), *world.add_ddp([4, 2])]
    services = world.wait_services("a-coordinator", *names)
    pods = world.pods()
    assert {pod["spec"]["priorityClassName"] for pod in pods.values()} == {name}
    assert {pod["spec"]["priority"] for pod in pods.values()} == {10}
    plain = {
        pod["metadata"]["labels"]["replica-type"]
        for pod in pods.values()
        if [each["name"] for each in pod["spec"].get("volumes", ()) if each["name"] in {"x", "y"}] != ["x", "y"]
    }
    assert plain == {"aggregator"}
    assert sorted(len(service["spec"]["ports"]) for service in services.values()) == [1, 1, 1, 1, 2, 5]


@pytest.mark.case("di-orchestrator-12", "ab")
def test_a_restarted_operator_changes_no_job(world: DiWorld, di_operator: Operator):
    world.create()
    world.run()
    world.create("b", cleanPodPolicy="All")
    world.wait_pod("b-coordinator")
    world.set_pod("b-coordinator", {"phase": "Succeeded"})
    world.wait_phase("Succeeded", "b")
    world.wait_pods("a-coordinator")
    world.wait_services("a-coordinator")
    versions = {name: world.job(name)["metadata"]["resourceVersion"] for name in "ab"}
    di_operator.end()
    di_operator.start()
    world.create("c")
    world.wait_pod("c-coordinator")
    world.settle(1)
    assert {name: world.job(name)["metadata"]["resourceVersion"] for name in "ab"} == versions
    assert sorted(world.pods()) == ["a-coordinator", "c-coordinator"]
    events = world.wait_events("DIJobCreated", 3)
    created = {event["involvedObject"]["name"]: event.get("count", 1) for event in events}
    assert created == {"a": 1, "b": 1, "c": 1}


def test_the_program_di_operator_with_its_lease(
    world: DiWorld, di_operator: Operator, control_plane_with_controllers: ControlPlane, tmp_path: Path
):
    di_operator.end()
    flags = ["--leader-elect", f"--leader-election-namespace={world.namespace}", "-server-address=http://x:1"]
    config = f"--kubeconfig={control_plane_with_controllers.kubeconfig}"
    program = (sys.executable, "-m", "trainop", "di-operator")
    operator = Operator(tmp_path / "log", config, *flags, program=program)
    operator.command = [word for word in operator.command if not word.startswith("--webhook-server-port")]
    operator.start()
    try:
        world.create()
        assert variables(world.wait_pod("a-coordinator"))["KUBERNETES_SERVER_URL"] == "http://x:1"
        leases = world.ask("GET", "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")["items"]
        assert [lease["metadata"]["name"] for lease in leases] == ["12841a5d.opendilab.org"]
        series = f'training_operator_jobs_created_total{{framework="dijob",job_namespace="{world.namespace}"}}'
        world.wait(lambda: operator.metric(series) == 1, "the counter of created jobs")
    finally:
        operator.end()


def test_a_job_without_coordinator_is_refused_by_the_schema(world: DiWorld):
    given: list[Json] = [{}, {"spec": {}}, {"spec": {"coordinator": {}}}]
    for fields in given:
        body = {"apiVersion": "diengine.opendilab.org/v1alpha1", "kind": "DIJob", "metadata": {"name": "x"}}
        answer = world.try_to("POST", JOBS, body | fields)
        assert answer.status == 422, answer


def test_a_job_that_can_never_work_fails_with_one_event(world: DiWorld):
    world.create(cleanPodPolicy="hello")
    world.wait_phase("Failed")
    text = "Invalid CleanPodPolicy hello, expected in [None, Running, All]"
    assert [each["message"] for each in world.status("a")["conditions"]] == [text]
    world.wait_told("Warning", "DIJobFailed", text)
    assert (world.pods(), world.services()) == ({}, {})


def test_templates_keep_their_metadata_and_unknown_fields(world: DiWorld):
    metadata = {"labels": {"mine": "x"}, "annotations": {"mine": "y"}}
    world.create(coordinator={**template(), "metadata": metadata})
    pod = world.wait_pod("a-coordinator")
    assert pod["metadata"]["labels"]["mine"] == "x"
    assert pod["metadata"]["annotations"]["mine"] == "y"
    assert "mine" not in world.wait_services("a-coordinator")["a-coordinator"]["spec"]["selector"]


def test_the_definitions_can_be_applied_by_plain_kubectl(
    control_plane_with_controllers: ControlPlane, kubectl: str, world: DiWorld
):
    del world
    folder = Path(__file__).parents[2] / "manifests" / "crds"
    for name in ("dijobs", "aggregatorconfigs"):
        file = folder / f"{name}.diengine.opendilab.org.yaml"
        config = f"--kubeconfig={control_plane_with_controllers.kubeconfig}"
        done = subprocess.run([kubectl, config, "apply", "-f", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
