"""Specifics of TFJob: the forms of TF_CONFIG, and success by chief or by workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.controllers.kinds import env, make, pods_of, running, services_of, world_of
from tests.engine.world import World
from tests.upstream import Upstream
from trainop.engine.actions import Event
from trainop.engine.framework import JOB_ROLE
from trainop.engine.parse import parse
from trainop.kinds import tf_config
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.kinds.tf_config import CLUSTER_FILE, MAX_CLUSTER_IN_ENVIRONMENT
from trainop.runtime.objects.metadata import CONFIG_MAPS, Json, Unstructured

EXAMPLE = {"Chief": 1, "PS": 1, "Worker": 2, "Evaluator": 1}


def tf(roles: dict[str, int], *, name: str = "a", **fields: Any) -> Json:
    return make("TFJob", roles, name=name, **fields)


def configs(job: Json, **options: Any) -> dict[str, str]:
    """TF_CONFIG by pod, as far as there is one."""
    found = {name: env(pod).get("TF_CONFIG") for name, pod in pods_of(job, **options).items()}
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.case("frameworks-v1-1", "abcd")
def test_a_single_worker_is_alone():
    (pod,) = pods_of(tf({"Worker": 1})).values()
    (service,) = services_of(tf({"Worker": 1})).values()
    assert pod["metadata"]["name"] == service["metadata"]["name"] == "a-worker-0"
    assert service["spec"]["ports"] == [{"name": "tfjob-port", "port": 2222}]
    assert pod["metadata"]["labels"][JOB_ROLE] == "master"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert "env" not in pod["spec"]["containers"][0]


@pytest.mark.case("frameworks-v1-2", "ab")
def test_the_cluster_domain_is_part_of_the_addresses():
    job = tf({"PS": 1, "Worker": 1})
    job["metadata"]["namespace"] = "ns2"
    assert configs(job, cluster_domain="tf.training.org")["a-worker-0"] == (
        '{"cluster":{"ps":["a-ps-0.ns2.svc.tf.training.org:2222"],"worker":["a-worker-0.ns2.svc.tf.training.org:2222"]},'
        '"task":{"type":"worker","index":0},"environment":"cloud"}'
    )
    assert configs(tf({"Worker": 1}), cluster_domain="tf.training.org") == {}


@pytest.mark.case("frameworks-v1-3", "ab")
def test_evaluators_are_in_the_cluster_and_keys_are_sorted():
    found = configs(tf({"PS": 1, "Worker": 1, "Evaluator": 1}))
    for value in found.values():
        assert list(json.loads(value)["cluster"]) == ["evaluator", "ps", "worker"]
    assert json.loads(found["a-evaluator-0"])["task"] == {"type": "evaluator", "index": 0}


def test_the_example_of_the_specification():
    assert configs(tf(EXAMPLE, name="tf"))["tf-worker-1"] == (
        '{"cluster":{"chief":["tf-chief-0.ns.svc:2222"],"evaluator":["tf-evaluator-0.ns.svc:2222"],'
        '"ps":["tf-ps-0.ns.svc:2222"],"worker":["tf-worker-0.ns.svc:2222","tf-worker-1.ns.svc:2222"]},'
        '"task":{"type":"worker","index":1},"environment":"cloud"}'
    )


def test_a_master_is_called_master():
    found = configs(tf({"Master": 1, "Worker": 1}))
    assert json.loads(found["a-master-0"])["task"] == {"type": "master", "index": 0}
    assert list(json.loads(found["a-master-0"])["cluster"]) == ["master", "worker"]


def test_a_type_of_no_replicas_is_an_empty_list():
    assert json.loads(configs(tf({"PS": 0, "Worker": 2}))["a-worker-0"])["cluster"]["ps"] == []


def test_ports_are_those_of_each_types_own_template():
    job = tf({"PS": 1, "Worker": 1})
    container = {"name": "tensorflow", "image": "i", "ports": [{"name": "tfjob-port", "containerPort": 3333}]}
    job["spec"]["tfReplicaSpecs"]["PS"] = {"template": {"spec": {"containers": [container]}}}
    cluster = json.loads(configs(job)["a-worker-0"])["cluster"]
    assert cluster == {"ps": ["a-ps-0.ns.svc:3333"], "worker": ["a-worker-0.ns.svc:2222"]}


@pytest.mark.case("frameworks-v1-4", "a")
def test_dynamic_workers_know_themselves_and_the_servers():
    found = configs(tf(EXAMPLE, name="tf", enableDynamicWorker=True))
    ps = '"ps":["tf-ps-0.ns.svc:2222"]'
    alone = '{"cluster":{"worker":{},"ps":[]},"task":{"type":"%s","index":0}}'
    assert found == {
        "tf-chief-0": alone % "chief",
        "tf-evaluator-0": alone % "evaluator",
        "tf-ps-0": f'{{"cluster":{{"worker":{{}},{ps}}},"task":{{"type":"ps","index":0}}}}',
        **{
            f"tf-worker-{i}": (
                f'{{"cluster":{{"worker":{{"{i}":"tf-worker-{i}.ns.svc:2222"}},{ps}}},'
                f'"task":{{"type":"worker","index":{i}}}}}'
            )
            for i in (0, 1)
        },
    }
    without = configs(tf({"Worker": 2}, enableDynamicWorker=True))["a-worker-1"]
    assert without == '{"cluster":{"worker":{"1":"a-worker-1.ns.svc:2222"},"ps":[]},"task":{"type":"worker","index":1}}'


@pytest.mark.case("frameworks-v1-4", "bc")
def test_dynamic_workers_may_be_added():
    world = running("TFJob", {"PS": 1, "Worker": 2}, name="a", enableDynamicWorker=True)
    before = {name: pod["metadata"]["uid"] for name, pod in world.pods.items()}
    world.spec["tfReplicaSpecs"]["Worker"]["replicas"] = 3
    world.settle()
    assert {name: pod["metadata"]["uid"] for name, pod in world.pods.items() if name != "a-worker-2"} == before
    assert "a-worker-2" in world.living()


def test_only_the_container_called_tensorflow_gets_it():
    template = {"containers": [{"name": "side", "image": "i"}, {"name": "tensorflow", "image": "i"}]}
    side, main = pods_of(tf({"Worker": 2}, template=template))["a-worker-0"]["spec"]["containers"]
    assert "env" not in side
    assert [entry["name"] for entry in main["env"]] == ["TF_CONFIG"]


@pytest.mark.case("frameworks-v1-5", "ab")
def test_keys_in_odd_cases():
    job = tf({"ps": 1, "WORKER": 1})
    world = World(job, framework=TENSORFLOW)
    world.settle()
    assert set(world.status["replicaStatuses"]) == {"PS", "Worker"}
    assert sorted(world.pods) == ["a-ps-0", "a-worker-0"]


# A cluster too large for the environment ------------------------------------------------------------------------------


def test_from_100_kib_the_cluster_is_a_file_that_all_share():
    world = world_of("TFJob", {"PS": 2, "Worker": 5000}, name="big")
    assert len(world.pods) == 5002
    (shared,) = world.companions[CONFIG_MAPS].values()
    assert shared["metadata"]["name"] == "big-tf-config"
    assert shared["metadata"]["ownerReferences"][0]["uid"] == "uid-j"
    assert list(shared["data"]) == ["cluster.json"]
    cluster = json.loads(shared["data"]["cluster.json"])
    assert cluster["ps"] == ["big-ps-0.ns.svc:2222", "big-ps-1.ns.svc:2222"]
    assert cluster["worker"] == [f"big-worker-{i}.ns.svc:2222" for i in range(5000)]
    for index in (0, 1234, 4999):
        pod = world.pods[f"big-worker-{index}"]
        config = json.loads(env(pod)["TF_CONFIG"])
        assert config == {"cluster": CLUSTER_FILE, "task": {"type": "worker", "index": index}, "environment": "cloud"}
        assert pod["spec"]["volumes"] == [{"name": "trainop-tf-config", "configMap": {"name": "big-tf-config"}}]
        (mount,) = pod["spec"]["containers"][0]["volumeMounts"]
        assert mount == {"name": "trainop-tf-config", "mountPath": "/etc/trainop/tf-config", "readOnly": True}


def test_the_file_follows_the_scale_and_stays_until_the_job_goes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tf_config, "MAX_CLUSTER_IN_ENVIRONMENT", 1024)
    world = world_of("TFJob", {"Worker": 40}, name="big")
    (before,) = world.companions[CONFIG_MAPS].values()
    world.spec["tfReplicaSpecs"]["Worker"]["replicas"] = 41
    world.settle()
    (after,) = world.companions[CONFIG_MAPS].values()
    assert len(json.loads(after["data"]["cluster.json"])["worker"]) == 41
    assert before["metadata"]["annotations"] != after["metadata"]["annotations"]
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert list(world.companions[CONFIG_MAPS]) == ["big-tf-config"]


def test_the_border_is_the_length_of_the_cluster():
    """Just below it is in the environment, just above in the file."""

    def size(workers: int) -> int:
        return len(",".join(f'"big-worker-{i}.ns.svc:2222"' for i in range(workers)))

    border = next(count for count in range(3000, 6000) if size(count) + 1 > MAX_CLUSTER_IN_ENVIRONMENT)
    below = json.loads(env(pods_of(tf({"Worker": border - 1}, name="big"))["big-worker-0"])["TF_CONFIG"])
    above = json.loads(env(pods_of(tf({"Worker": border}, name="big"))["big-worker-0"])["TF_CONFIG"])
    assert len(below["cluster"]["worker"]) == border - 1
    assert above["cluster"] == CLUSTER_FILE


def test_dynamic_workers_need_no_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tf_config, "MAX_CLUSTER_IN_ENVIRONMENT", 1024)
    world = world_of("TFJob", {"Worker": 40}, name="big", enableDynamicWorker=True)
    assert world.companions[CONFIG_MAPS] == {}
    assert "volumes" not in world.pods["big-worker-0"]["spec"]


def test_volumes_of_the_user_stay():
    template = {
        "volumes": [{"name": "mine", "emptyDir": {}}],
        "containers": [{"name": "tensorflow", "image": "i", "volumeMounts": [{"name": "mine", "mountPath": "/m"}]}],
    }
    spec = pods_of(tf({"Worker": 4000}, name="big", template=template))["big-worker-0"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["mine", "trainop-tf-config"]
    assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["mine", "trainop-tf-config"]


# Progress -------------------------------------------------------------------------------------------------------------


@pytest.mark.case("frameworks-v1-6", "abc")
def test_worker_0_is_enough_unless_all_are_asked_for():
    for policy, expected in [("", "Succeeded"), (None, "Succeeded"), ("AllWorkers", "Running")]:
        world = running("TFJob", {"Worker": 4}, name="a", successPolicy=policy)
        world.end("a-worker-0", 0)
        world.settle()
        assert world.conditions[-1] == (expected, "True", f"TFJob{expected}")
    for index in (1, 2, 3):
        world.end(f"a-worker-{index}", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "TFJobSucceeded")
    assert world.event_messages("TFJobSucceeded") == ["TFJob ns/a successfully completed."]


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([], "Running"),
        ([{"name": "tensorflow", "state": {"terminated": {"exitCode": 1}}}], "Running"),
        ([{"name": "tensorflow", "state": {"waiting": {"reason": "x"}}}], "Running"),
        ([{"name": "side", "state": {"terminated": {"exitCode": 0}}}], "Running"),
        ([{"name": "tensorflow", "state": {"terminated": {"exitCode": 0}}}], "Succeeded"),
    ],
)
def test_worker_0_has_completed_once_its_container_is_known_to_have_ended_with_0(containers: list[Json], expected: str):
    world = running("TFJob", {"Worker": 2}, name="a")
    world.set_pod("a-worker-0", "Succeeded", containerStatuses=containers)
    world.settle()
    assert world.conditions[-1][0] == expected
    world.set_pod("a-worker-1", "Succeeded")
    world.settle()
    assert world.is_true("Succeeded"), "all workers are enough by their phase"


def test_all_workers_but_the_first_are_not_enough():
    world = running("TFJob", {"Worker": 2}, name="a")
    world.end("a-worker-1", 0)
    world.settle()
    assert world.is_true("Running")


@pytest.mark.case("frameworks-v1-7", "ab")
@pytest.mark.parametrize("chief", ["Chief", "Master"])
def test_the_chief_decides(chief: str):
    world = world_of("TFJob", {chief: 1, "Worker": 4}, name="a", successPolicy="AllWorkers")
    world.run(f"a-{chief.lower()}-0")
    world.settle()
    assert world.status["conditions"][-1]["message"] == "TFJob ns/a is running."
    world.run()
    world.settle()
    world.end(f"a-{chief.lower()}-0", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "TFJobSucceeded")


@pytest.mark.case("frameworks-v1-8", "ab")
def test_the_chiefs_success_beats_failed_workers():
    world = running("TFJob", {"Chief": 1, "Worker": 4}, name="a")
    for index in range(4):
        world.end(f"a-worker-{index}", 1)
    world.end("a-chief-0", 0)
    world.settle()
    assert world.is_true("Succeeded")
    assert not world.is_true("Failed")


@pytest.mark.case("frameworks-v1-9", "abc")
def test_a_failed_server_fails_the_job():
    world = running("TFJob", {"Chief": 1, "PS": 2}, name="a")
    world.end("a-ps-1", 1)
    world.settle()
    assert world.conditions[-2:] == [("Running", "False", "TFJobRunning"), ("Failed", "True", "TFJobFailed")]
    assert world.status["conditions"][-1]["message"] == Upstream(
        "TFJob ns/a has failed because 1 PS replica(s) failed."
    )
    assert world.status["completionTime"]


@pytest.mark.case("frameworks-v1-9", "b")
def test_running_is_reported_before_the_failure_even_if_both_happen_at_once():
    world = world_of("TFJob", {"Chief": 1, "PS": 1}, name="a")
    world.run("a-chief-0")
    world.end("a-ps-0", 1)
    world.settle()
    assert world.conditions[-2:] == [("Running", "False", "TFJobRunning"), ("Failed", "True", "TFJobFailed")]


@pytest.mark.case("frameworks-v1-11", "ab")
def test_dynamic_workers_may_fail_and_servers_may_not():
    world = running("TFJob", {"PS": 1, "Worker": 3}, name="a", enableDynamicWorker=True)
    world.end("a-worker-1", 1)
    world.settle()
    assert world.conditions[-1] == ("Running", "True", "TFJobRunning")
    assert "a-worker-1" in world.living()
    world.end("a-ps-0", 1)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "TFJobFailed")


def test_a_permanent_exit_code_ends_dynamic_workers_too():
    world = running("TFJob", {"Worker": 3}, name="a", policy="ExitCode", enableDynamicWorker=True)
    world.end("a-worker-1", 1)
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "TFJobFailed")


def test_restarting_of_one_type_does_not_hide_the_failure_of_another():
    job = tf({"PS": 1, "Worker": 2})
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    world = World(job, framework=TENSORFLOW)
    world.settle()
    world.run()
    world.settle()
    world.end("a-worker-1", 1)
    world.settle()
    assert world.is_true("Restarting")
    world.end("a-ps-0", 1)
    world.settle()
    assert world.status["conditions"][-1]["message"] == Upstream(
        "TFJob ns/a has failed because 1 PS replica(s) failed."
    )


@pytest.mark.parametrize(("restarts", "fails"), [("PS", "Worker"), ("Worker", "PS")])
def test_neither_does_it_if_both_fail_at_once(restarts: str, fails: str):
    job = tf({"PS": 1, "Worker": 2})
    job["spec"]["tfReplicaSpecs"][restarts]["restartPolicy"] = "OnFailure"
    world = World(job, framework=TENSORFLOW)
    world.settle()
    world.run()
    world.settle()
    for role in (restarts, fails):
        world.end(f"a-{role.lower()}-0", 1)
    world.settle()
    assert world.status["conditions"][-1]["message"] == Upstream(
        f"TFJob ns/a has failed because 1 {fails} replica(s) failed."
    )
    assert world.event_messages("TFJobRestarting") == []


def test_a_job_of_servers_and_evaluators_only_stays_created():
    world = running("TFJob", {"PS": 1, "Evaluator": 1}, name="a")
    assert world.conditions == [("Created", "True", "TFJobCreated")]
    assert all(JOB_ROLE not in pod["metadata"]["labels"] for pod in world.pods.values())


def test_a_chief_of_no_replicas_is_none():
    world = running("TFJob", {"Chief": 0, "Worker": 1}, name="a")
    assert world.is_true("Running")
    assert world.pods["a-worker-0"]["metadata"]["labels"][JOB_ROLE] == "master"


@pytest.mark.case("job-engine-21", "abcde")
def test_restarts_in_place_over_the_backoff_limit_end_the_job():
    """Each of four workers was restarted once by the kubelet; those of servers, whose policy is Never, do not count."""
    job = tf({"Worker": 4, "PS": 2}, name="j", run={"backoffLimit": 4})
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    world = World(job, framework=TENSORFLOW)
    world.settle()
    world.run()
    world.settle()

    def restarted(name: str) -> None:
        world.set_pod(name, "Running", containerStatuses=[{"name": "tensorflow", "restartCount": 1, "state": {}}])

    for name in ("j-ps-0", "j-ps-1", "j-worker-0", "j-worker-1", "j-worker-2"):
        restarted(name)
    world.settle()
    assert world.is_true("Running")
    restarted("j-worker-3")
    world.settle()
    text = Upstream("Job j has failed because it has reached the specified backoff limit")
    assert world.conditions[-2:] == [("Running", "False", "TFJobRunning"), ("Failed", "True", "TFJobFailed")]
    assert world.status["conditions"][-1]["message"] == text
    assert world.status["completionTime"]
    assert world.status["replicaStatuses"] == {"PS": {}, "Worker": {}}
    assert (world.living(), world.services) == ([], {})
    assert [event for event in world.events if event.reason == "TFJobFailed"] == [Event("Normal", "TFJobFailed", text)]
    assert world.counts == {"created": 1, "failed": 1}


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.case("frameworks-v1-12", "a")
def test_chief_and_master_are_one_too_many():
    (error,) = parse(TENSORFLOW, Unstructured(tf({"Chief": 1, "Master": 1}))).errors
    assert str(error) == "spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief or Master role"


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ({"successPolicy": "all"}, 'spec.successPolicy: Unsupported value: "all": supported values: "AllWorkers"'),
        ({"enableDynamicWorker": "yes"}, 'spec.enableDynamicWorker: Invalid value: "yes": must be true or false'),
    ],
)
def test_rules(spec: Json, reported: str):
    (error,) = parse(TENSORFLOW, Unstructured(tf({"Worker": 1}, **spec))).errors
    assert str(error) == reported


def test_a_job_without_chief_runs_with_its_workers():
    world = world_of("TFJob", {"PS": 1, "Worker": 2}, name="a")
    world.run("a-ps-0")
    world.settle()
    assert world.conditions == [("Created", "True", "TFJobCreated")]
    masters = [name for name, pod in world.pods.items() if JOB_ROLE in pod["metadata"]["labels"]]
    assert masters == ["a-worker-0"]
    world.run("a-worker-1")
    world.settle()
    assert world.is_true("Running")


def test_only_the_chief_is_called_master():
    pods = pods_of(tf({"Chief": 1, "PS": 1, "Worker": 2}))
    assert [name for name, pod in pods.items() if JOB_ROLE in pod["metadata"]["labels"]] == ["a-chief-0"]


@pytest.mark.parametrize("workers", [2, 9, 10, 11, 100, 101, 1000, 1001])
def test_the_length_is_known_before_the_cluster_is_written(workers: int, monkeypatch: pytest.MonkeyPatch):
    """As long as the addresses with their quotes and commas, to the byte."""
    addresses = json.dumps([f"a-worker-{i}.ns.svc:2222" for i in range(workers)], separators=(",", ":"))
    monkeypatch.setattr(tf_config, "MAX_CLUSTER_IN_ENVIRONMENT", len(addresses) - 1)
    assert "/etc/" not in configs(tf({"Worker": workers}))["a-worker-0"]
    monkeypatch.setattr(tf_config, "MAX_CLUSTER_IN_ENVIRONMENT", len(addresses) - 2)
    assert "/etc/" in configs(tf({"Worker": workers}))["a-worker-0"]
