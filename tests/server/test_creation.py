"""The children of a PyTorchJob on a real API server: pods, services, environment, and the first conditions."""

from __future__ import annotations

import pytest

from tests.server.process import Operator
from tests.server.world import CORE, JOBS, MERGE, Json, World, replicas

PREFIX = "training.kubeflow.org/"
TRIO = ("j-master-0", "j-worker-0", "j-worker-1")
NODE = {"nodeName": "somewhere"}  # bound pods are deleted with their grace period, as on a real node


def environment(pod: Json, container: str = "pytorch") -> dict[str, str]:
    return {
        variable["name"]: variable["value"]
        for one in pod["spec"]["containers"]
        if one["name"] == container
        for variable in one.get("env", ())
    }


@pytest.mark.case("job-engine-1", "abcd")
def test_one_master_two_workers(world: World):
    job = world.create_job("j", {"Master": replicas(1), "Worker": replicas(2)})
    pods = world.wait_pods(*TRIO)
    services = world.wait_services(*TRIO)
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": "j",
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for child in [*pods.values(), *services.values()]:
        assert child["metadata"]["ownerReferences"] == [owner]
    assert all(service["spec"]["clusterIP"] == "None" for service in services.values())
    assert pods["j-master-0"]["metadata"]["labels"][f"{PREFIX}job-role"] == "master"
    assert f"{PREFIX}job-role" not in pods["j-worker-0"]["metadata"]["labels"]
    world.run_pod("j-master-0")
    running = world.wait_condition("Running")
    assert world.conditions() == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "True", "PyTorchJobRunning"),
    ]
    assert running["message"] == "PyTorchJob j is running."
    assert world.condition("Created")["message"] == "PyTorchJob j is created."


@pytest.mark.case("job-engine-2", "ab")
def test_labels_of_a_replica(world: World):
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(2)})
    labels = world.wait_pods(*TRIO)["j-worker-1"]["metadata"]["labels"]
    expected = {
        f"{PREFIX}operator-name": "pytorchjob-controller",
        f"{PREFIX}job-name": "j",
        f"{PREFIX}replica-type": "worker",
        f"{PREFIX}replica-index": "1",
    }
    assert labels == expected
    service = world.wait_services(*TRIO)["j-worker-1"]
    assert service["spec"]["selector"] == expected
    assert service["metadata"]["labels"] == expected


@pytest.mark.case("job-engine-3", "abc")
def test_metadata_of_the_template(world: World):
    labels = {"label1": "1", f"{PREFIX}job-name": "x"}
    metadata = {"labels": labels, "annotations": {"annotation1": "1"}}
    world.create_job("j", {"Worker": replicas(1, metadata=metadata)})
    pod = world.wait_pods("j-worker-0")["j-worker-0"]
    assert pod["metadata"]["labels"]["label1"] == "1"
    assert pod["metadata"]["labels"][f"{PREFIX}job-name"] == "j"
    assert pod["metadata"]["annotations"]["annotation1"] == "1"


@pytest.mark.case("job-engine-4", "abc")
def test_restart_policy_of_the_replica_type_wins(world: World):
    world.create_job("j", {"Worker": replicas(1, "OnFailure", restartPolicy="Always")})
    assert world.wait_pods("j-worker-0")["j-worker-0"]["spec"]["restartPolicy"] == "OnFailure"
    event = world.wait(lambda: world.events("SetPodTemplateRestartPolicy"), "the warning")[0]
    assert event["type"] == "Warning"
    assert event["message"] == "Restart policy in pod template will be overwritten by restart policy in replica spec"
    for policy, of_pod in (("ExitCode", "Never"), ("Never", "Never"), ("Always", "Always"), ("OnFailure", "OnFailure")):
        name = f"p-{policy.lower()}"
        world.create_job(name, {"Worker": replicas(1, policy)})
        pod = world.wait_pod(f"{name}-worker-0")
        assert pod["spec"]["restartPolicy"] == of_pod


@pytest.mark.case("frameworks-v1-13", "abcd")
def test_environment_with_a_master(world: World):
    port = {"ports": [{"name": "pytorchjob-port", "containerPort": 8080}]}
    world.create_job("pt", {"Master": replicas(1, container=port), "Worker": replicas(2, container=port)})
    pods = world.wait_pods("pt-master-0", "pt-worker-0", "pt-worker-1")
    assert environment(pods["pt-master-0"]) == {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": "8080",
        "PET_MASTER_PORT": "8080",
        "MASTER_ADDR": "pt-master-0",
        "PET_MASTER_ADDR": "pt-master-0",
        "WORLD_SIZE": "3",
        "RANK": "0",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "3",
    }
    assert environment(pods["pt-worker-1"])["RANK"] == "2"
    assert [c["name"] for c in pods["pt-worker-0"]["spec"]["initContainers"]] == ["init-pytorch"]
    assert "initContainers" not in pods["pt-master-0"]["spec"]
    for service in world.wait_services(*pods).values():
        assert [port["port"] for port in service["spec"]["ports"]] == [8080]


@pytest.mark.case("frameworks-v1-14", "ab")
def test_processes_per_node(world: World):
    for name, nproc, world_size in (("four", "4", "12"), ("gpu", "gpu", "3")):
        world.create_job(name, {"Master": replicas(1), "Worker": replicas(2)}, spec={"nprocPerNode": nproc})
        pod = world.wait_pod(f"{name}-master-0")
        assert environment(pod)["WORLD_SIZE"] == world_size
        assert environment(pod)["PET_NPROC_PER_NODE"] == nproc


@pytest.mark.case("frameworks-v1-15", "abcde")
def test_workers_only(world: World):
    world.create_job("j", {"Worker": replicas(2)})
    pods = world.wait_pods("j-worker-0", "j-worker-1")
    assert environment(pods["j-worker-1"]) == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "2",
    }
    assert "initContainers" not in pods["j-worker-0"]["spec"]
    assert pods["j-worker-0"]["metadata"]["labels"][f"{PREFIX}job-role"] == "master"
    assert f"{PREFIX}job-role" not in pods["j-worker-1"]["metadata"]["labels"]
    world.run_pod("j-worker-0", "j-worker-1")
    world.wait_condition("Running")
    world.end_pod("j-worker-0")
    world.wait(lambda: world.tally("Worker").get("succeeded") == 1, "one success")
    assert world.is_now("Running")
    world.end_pod("j-worker-1")
    assert world.wait_condition("Succeeded")["message"] == f"PyTorchJob {world.namespace}/j successfully completed."


@pytest.mark.case("frameworks-v1-16", "a")
def test_elastic_environment(world: World):
    policy = {
        "rdzvHost": "localhost",
        "rdzvPort": 1234,
        "rdzvId": "rdzv-id",
        "rdzvConf": [{"key": "k1", "value": "v1"}, {"key": "k2", "value": "v2"}],
        "minReplicas": 1,
        "maxReplicas": 3,
        "maxRestarts": 3,
    }
    world.create_job("el", {"Worker": replicas(1)}, spec={"elasticPolicy": policy})
    seen = environment(world.wait_pods("el-worker-0")["el-worker-0"])
    expected = {
        "PET_RDZV_ENDPOINT": "localhost:1234",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:3",
        "PET_MAX_RESTARTS": "3",
        "PET_RDZV_ID": "rdzv-id",
        "PET_RDZV_CONF": "k1=v1,k2=v2",
    }
    assert expected.items() <= seen.items()


@pytest.mark.case("frameworks-v1-18", "a")
def test_elastic_success_of_one(world: World):
    world.create_job("el", {"Worker": replicas(2)}, spec={"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}})
    world.wait_pods("el-worker-0", "el-worker-1")
    world.run_pod("el-worker-0")
    world.end_pod("el-worker-1")
    world.wait_condition("Succeeded", "el")


def test_success_is_counted_once(world: World, operator: Operator):
    world.create_job("j", {"Master": replicas(1), "Worker": replicas(1)})
    world.wait_pods("j-master-0", "j-worker-0")
    world.run_pod("j-master-0", "j-worker-0")
    world.wait_condition("Running")
    world.end_pod("j-master-0")
    assert world.wait_condition("Succeeded")["message"] == "PyTorchJob j is successfully completed."
    assert world.status()["completionTime"]
    series = f'training_operator_jobs_successful_total{{framework="pytorch",job_namespace="{world.namespace}"}}'
    world.wait(lambda: operator.metric(series) == 1, "the counter")
    world.end_pod("j-worker-0")
    world.settle()
    assert operator.metric(series) == 1
    world.wait_events("PyTorchJobSucceeded")


@pytest.mark.case("job-engine-11", "a")
def test_scale_down_and_up(world: World):
    world.create_job("j", {"Worker": replicas(3)})
    before = world.wait_pods("j-worker-0", "j-worker-1", "j-worker-2")
    world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}})
    after = world.wait_pods("j-worker-0", "j-worker-1")
    world.wait(lambda: set(world.services()) == set(after), "two services")
    assert all(after[name]["metadata"]["uid"] == before[name]["metadata"]["uid"] for name in after)
    for name in ("j-worker-1", "j-worker-0"):
        world.ask("DELETE", f"{CORE}/pods/{name}", {"gracePeriodSeconds": 0})
    world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}})
    world.wait_pods("j-worker-0", "j-worker-1", "j-worker-2")


def test_scale_subresource(world: World):
    job = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 5}}
    world.create_job("j", {"Worker": replicas(2)}, spec=job)
    world.wait_pods("j-worker-0", "j-worker-1")
    world.run_pod("j-worker-0", "j-worker-1")
    world.wait(lambda: world.status().get("replicaStatuses", {}).get("Worker", {}).get("active") == 2, "both active")
    scale = world.ask("GET", f"{JOBS}/j/scale")
    selector = f"{PREFIX}job-name=j,{PREFIX}operator-name=pytorchjob-controller,{PREFIX}replica-type=worker"
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": selector}
    assert len(world.ask("GET", f"{CORE}/pods?labelSelector={selector}")["items"]) == 2
    world.ask("PATCH", f"{JOBS}/j/scale", {"spec": {"replicas": 3}}, MERGE)
    world.wait_pods("j-worker-0", "j-worker-1", "j-worker-2")


@pytest.mark.case("job-engine-12", "ab")
def test_an_index_out_of_range_goes_and_is_not_filled(world: World):
    world.create_job("j", {"Worker": replicas(5, **NODE)})
    names = [f"j-worker-{index}" for index in range(5)]
    world.wait_pods(*names)
    world.patch_job({"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}})
    world.wait(lambda: all("deletionTimestamp" in world.pods()[n]["metadata"] for n in names[3:]), "two leaving")
    world.reap_pod("j-worker-3")  # index 4 is still terminating; upstream refilled the gap in this state
    world.settle()
    assert "j-worker-3" not in world.pods()
    world.reap_pod("j-worker-4")
    world.settle()
    world.wait_pods(*names[:3])


@pytest.mark.case("job-engine-39", "a")
def test_ports_in_order_without_duplicates(world: World):
    ports = [{"name": "a", "containerPort": 8080}, {"containerPort": 9000}]
    world.create_job("j", {"Worker": replicas(1, container={"ports": ports})})
    world.wait_pods("j-worker-0")
    seen = world.wait_services("j-worker-0")["j-worker-0"]["spec"]["ports"]
    assert [port["port"] for port in seen] == [8080, 9000, 23456]
    assert seen[0]["name"] == "a"
    assert seen[1]["name"]
    assert seen[2]["name"] == "pytorchjob-port"


@pytest.mark.case("job-engine-39", "cd")
def test_a_job_without_its_container_fails_validation(world: World):
    template = {"spec": {"containers": [{"name": "other", "image": "none"}]}}
    world.create_job("j", {"Worker": {"replicas": 1, "template": template}})
    event = world.wait(lambda: world.events("PyTorchJobFailedValidation"), "the event")[0]
    assert event["type"] == "Warning"
    assert "pytorch" in event["message"]
    world.settle()
    assert world.pods() == {}
    world.wait_events("PyTorchJobFailedValidation")
