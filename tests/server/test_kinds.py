"""One contract for every kind on a real API server: pods and their environment, success, failures, CRD rules."""

from __future__ import annotations

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.server.kinds import GROUP, ROWS, KindWorld, Row
from tests.server.process import Operator
from tests.server.world import MERGE, Json
from tests.upstream import Upstream
from trainop.programs.schemes import FRAMEWORKS

PREFIX = "training.kubeflow.org/"


@pytest.fixture(params=FRAMEWORKS, ids=str)
def stage(request: pytest.FixtureRequest, control_plane: ControlPlane, operator: Operator) -> KindWorld:
    """A namespace for each kind in turn, with the operator running."""
    del operator
    return KindWorld(control_plane.api, FRAMEWORKS[request.param])


@pytest.fixture
def row(stage: KindWorld) -> Row:
    return ROWS[stage.framework.kind]


def environment(stage: KindWorld, pod: Json) -> dict[str, str]:
    """The variables of the framework's container; a fieldRef is represented by its field path."""
    one = next(c for c in pod["spec"]["containers"] if c["name"] == stage.framework.container)
    return {v["name"]: v["value"] if "value" in v else v["valueFrom"]["fieldRef"]["fieldPath"] for v in one["env"]}


@pytest.mark.case("job-engine-25", "f")
def test_a_job_lives_and_succeeds(stage: KindWorld, row: Row):
    def fill(text: str) -> str:
        return text.replace("{ns}", stage.namespace)

    kind = stage.framework.kind
    job = stage.create("j", row.counts)
    pods = stage.wait_pods(*row.names("j"))
    stage.wait(lambda: set(stage.services()) == set(pods), "a service for each pod")
    for name, child in [*pods.items(), *stage.services().items()]:
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["uid"], owner["controller"]) == (kind, job["metadata"]["uid"], True)
        labels = child["metadata"]["labels"]
        _, role, index = name.split("-")
        assert labels[f"{PREFIX}operator-name"] == f"{kind.lower()}-controller"
        assert (labels[f"{PREFIX}replica-type"], labels[f"{PREFIX}replica-index"]) == (role, index)
    masters = {name for name, pod in pods.items() if pod["metadata"]["labels"].get(f"{PREFIX}job-role") == "master"}
    assert masters == {f"j-{leader}" for leader in row.leaders}
    assert environment(stage, pods[f"j-{row.pod}"]) == {name: fill(text) for name, text in row.variables.items()}
    for service in stage.services().values():
        assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [row.port]

    stage.run_pod(*pods)
    assert stage.wait_condition("Running")["message"] == fill(row.running)
    for end in row.ends:
        assert stage.is_now("Running")
        stage.end_pod(f"j-{end}")
    assert stage.wait_condition("Succeeded")["message"] == fill(row.succeeded)
    assert stage.status()["completionTime"]
    assert stage.conditions() == [
        ("Created", "True", f"{kind}Created"),
        ("Running", "False", f"{kind}Running"),
        ("Succeeded", "True", f"{kind}Succeeded"),
    ]
    stage.patch_job({"runPolicy": {"ttlSecondsAfterFinished": 0}})
    stage.wait(lambda: stage.try_to("GET", f"{stage.jobs}/j").status == 404, "the deletion of the job")
    stage.wait(lambda: stage.events(f"SuccessfulDelete{row.ended}"), "the event of the deletion")


def test_a_pod_that_must_not_fail_fails_the_job(stage: KindWorld, row: Row):
    stage.create("f", row.counts, "Never")
    pods = stage.wait_pods(*row.names("f"))
    stage.run_pod(*pods)
    stage.wait_condition("Running", "f")
    stage.end_pod(f"f-{row.fails}", 3)
    failed = stage.wait_condition("Failed", "f")
    assert failed["reason"] == f"{stage.framework.kind}Failed"
    assert failed["message"] == Upstream(row.failed.replace("{ns}", stage.namespace))
    assert "exited with code 3" in failed["message"]
    cause = stage.status("f")["lastFailure"]
    assert (cause["pod"], cause["exitCode"]) == (f"f-{row.fails}", 3)
    policies = {each["terminationMessagePolicy"] for pod in pods.values() for each in pod["spec"]["containers"]}
    assert policies == {"FallbackToLogsOnError"}
    assert stage.status("f")["completionTime"]
    assert [c[:2] for c in stage.conditions("f")] == [("Created", "True"), ("Running", "False"), ("Failed", "True")]


def test_exit_codes_restart_or_end_the_job(stage: KindWorld, row: Row):
    stage.create("e", row.counts, "ExitCode")
    pods = stage.wait_pods(*row.names("e"))
    stage.run_pod(*pods)
    stage.wait_condition("Running", "e")
    victim = f"e-{row.fails}"
    stage.end_pod(victim, 130)
    stage.wait_successor(victim, pods[victim]["metadata"]["uid"])
    restarting = stage.wait_condition("Restarting", "e")
    role = next(role for role in row.counts if role.lower() == row.fails.split("-")[0])
    assert restarting["message"] == Upstream(f"job e is restarting because {role} replica(s) failed.")
    stage.run_pod(victim)
    stage.wait_condition("Running", "e")
    assert stage.condition("Restarting", "e") == {}
    stage.end_pod(victim, 1)
    failed = stage.wait_condition("Failed", "e")
    assert failed["message"] == Upstream(f'job "e" is failing because "{role}" replica(s) failed.')


def test_suspended_and_resumed(stage: KindWorld, row: Row):
    kind = stage.framework.kind
    stage.create("j", row.counts, runPolicy={"suspend": True})
    assert stage.wait_condition("Suspended")["reason"] == f"{kind}Suspended"
    assert stage.pods() == {}
    stage.patch_job({"runPolicy": {"suspend": False}})
    stage.wait_pods(*row.names("j"))
    stage.patch_job({"runPolicy": {"suspend": True}})
    stage.wait_pods()
    stage.wait(lambda: not stage.services(), "no services")
    assert stage.wait_condition("Suspended")["message"] == f"{kind} j is suspended."


@pytest.mark.case("frameworks-v1-26", "a")
@pytest.mark.case("frameworks-v1-23", "c")
@pytest.mark.case("job-engine-37", "eh")
def test_rules_of_the_definition(stage: KindWorld, row: Row):
    """Queue and manager are immutable and required fields are required; the operator validates the rest."""
    policy = {"schedulingPolicy": {"queue": "a"}, "managedBy": "kueue.x-k8s.io/multikueue"}
    stage.create("j", row.counts, runPolicy=policy)
    for change, words in (
        ({"schedulingPolicy": {"queue": "b"}}, "spec.runPolicy.schedulingPolicy.queue is immutable"),
        ({"managedBy": "kubeflow.org/training-operator"}, "field is immutable"),
    ):
        answer = stage.try_to("PATCH", f"{stage.jobs}/j", {"spec": {"runPolicy": change}}, MERGE)
        assert (answer.status, words in answer.body["message"]) == (422, True), answer
    required = {stage.framework.replica_specs, *stage.framework.required_fields}
    answer = stage.try_to("POST", stage.jobs, {**stage.body("k", {}), "spec": {}})
    assert answer.status == 422, answer
    missing = {c["field"] for c in answer.body["details"]["causes"] if c["reason"] == "FieldValueRequired"}
    assert missing == {f"spec.{name}" for name in required}


def test_scaling(stage: KindWorld, row: Row):
    """Through the scale subresource, for kinds that have one."""
    stage.create("j", row.counts)
    stage.wait_pods(*row.names("j"))
    answer = stage.try_to("GET", f"{stage.jobs}/j/scale")
    if not row.scale:
        assert answer.status == 404, answer
        return
    stage.run_pod("j-worker-0")
    stage.wait(lambda: stage.status().get("replicaStatuses", {}).get("Worker", {}).get("active") == 1, "the count")
    scale = stage.ask("GET", f"{stage.jobs}/j/scale")
    controller = f"{stage.framework.kind.lower()}-controller"
    assert scale["spec"]["replicas"] == row.counts["Worker"]
    assert scale["status"] == {
        "replicas": 1,
        "selector": f"{PREFIX}job-name=j,{PREFIX}operator-name={controller},{PREFIX}replica-type=worker",
    }
    stage.ask("PATCH", f"{stage.jobs}/j/scale", {"spec": {"replicas": 4}}, MERGE)
    stage.wait_pod("j-worker-3")


def test_columns(stage: KindWorld, row: Row):
    """The columns of `kubectl get`."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    crd = stage.ask("GET", f"{definitions}/{stage.framework.resource}")
    version = crd["spec"]["versions"][0]
    columns = [(c["name"], c["type"], c["jsonPath"]) for c in version["additionalPrinterColumns"]]
    assert columns[:2] == [
        ("State", "string", ".status.conditions[-1:].type"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]
    assert [c["priority"] for c in version["additionalPrinterColumns"][2:]] == [1, 1], "plain `kubectl get` has no more"
    assert ("scale" in version["subresources"]) == row.scale
    assert crd["status"]["acceptedNames"]["kind"] == stage.framework.kind
    assert not [c for c in crd["status"]["conditions"] if c["type"] == "NonStructuralSchema"]
    discovered = {one["name"] for one in stage.ask("GET", GROUP)["resources"]}
    assert f"{stage.framework.resource.plural}/status" in discovered
