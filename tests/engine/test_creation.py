"""The first plan of a job: pods, services, names, labels, ports, conditions; and scaling."""

from dataclasses import replace

import pytest

from tests.engine.builders import (
    CREATED,
    RUNNING,
    UID,
    L,
    condition,
    conditions_of,
    labels,
    make_job,
    make_pod,
    make_service,
    manifest_of,
    names,
    plan_for,
    pod_created,
    pod_deleted,
    replica,
    see,
    service_created,
    service_deleted,
    stamp,
    status_of,
    template,
    written,
)
from tests.engine.world import World
from trainop.engine.actions import Count, Event, Plan
from trainop.engine.addresses import child_name
from trainop.engine.job import Port, Role
from trainop.engine.manifests import service_ports
from trainop.engine.plan import plan
from trainop.engine.seen import Options
from trainop.kinds.pytorch import PYTORCH
from trainop.runtime.objects.metadata import Json

OWNER = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "name": "j",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}


def pods_of(made: Plan):
    return {a.name: manifest_of(a) for a in made.actions if pod_created(a)}


def services_of(made: Plan):
    return {a.name: manifest_of(a) for a in made.actions if service_created(a)}


@pytest.mark.case("job-engine-1", "abcd")
def test_a_new_job_gets_a_pod_and_a_headless_service_for_each_replica():
    made = plan_for(make_job())
    expected = ["j-master-0", "j-worker-0", "j-worker-1"]
    assert list(pods_of(made)) == list(services_of(made)) == expected
    for manifest in (*pods_of(made).values(), *services_of(made).values()):
        assert manifest["metadata"]["ownerReferences"] == [OWNER]
        assert manifest["metadata"]["namespace"] == "ns"
    leaders = [name for name, pod in pods_of(made).items() if f"{L}job-role" in pod["metadata"]["labels"]]
    assert leaders == ["j-master-0"]
    assert pods_of(made)["j-master-0"]["metadata"]["labels"][f"{L}job-role"] == "master"
    assert {service["spec"]["clusterIP"] for service in services_of(made).values()} == {"None"}
    assert made.transitions == (Count("created"),)
    assert not made.status_first
    assert written(made)["startTime"] == stamp()

    world = World(make_job())
    world.settle()
    world.run("j-master-0")
    world.settle()
    assert [(c["type"], c["status"], c["reason"], c["message"]) for c in world.status["conditions"]] == [
        ("Created", "True", "PyTorchJobCreated", "PyTorchJob j is created."),
        ("Running", "True", "PyTorchJobRunning", "PyTorchJob j is running."),
    ]


@pytest.mark.case("job-engine-2", "ab")
def test_labels_name_the_replica_and_are_selected_by_its_service():
    made = plan_for(make_job())
    assert pods_of(made)["j-worker-1"]["metadata"]["labels"] == labels("worker", 1)
    assert services_of(made)["j-worker-1"]["metadata"]["labels"] == labels("worker", 1)
    assert services_of(made)["j-worker-1"]["spec"]["selector"] == labels("worker", 1)


@pytest.mark.case("job-engine-3", "abc")
def test_the_templates_metadata_is_kept_but_for_our_labels():
    tmpl = template() | {
        "metadata": {
            "labels": {"label1": "1", f"{L}job-name": "x"},
            "annotations": {"annotation1": "1"},
            "finalizers": ["a/b"],
        }
    }
    found = pods_of(plan_for(make_job(1, None, tmpl=tmpl)))["j-master-0"]["metadata"]
    assert found["labels"] == {"label1": "1", **labels("master", 0), f"{L}job-role": "master"}
    assert found["annotations"] == {"annotation1": "1"}
    assert found["finalizers"] == ["a/b"]


@pytest.mark.case("job-engine-4", "abc")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [("ExitCode", "Never"), ("Never", "Never"), ("Always", "Always"), ("OnFailure", "OnFailure"), (None, "OnFailure")],
)
def test_restart_policy_of_the_pods_is_that_of_the_replica(policy: str | None, expected: str):
    made = plan_for(make_job(1, 1, policy=policy, tmpl=template(restartPolicy="Always")))
    assert [pod["spec"]["restartPolicy"] for pod in pods_of(made).values()] == [expected] * 2
    text = "Restart policy in pod template will be overwritten by restart policy in replica spec"
    assert [notice.event for notice in made.notices] == [Event("Warning", "SetPodTemplateRestartPolicy", text)] * 2


def test_without_a_restart_policy_in_the_template_there_is_no_warning():
    assert plan_for(make_job()).notices == ()


@pytest.mark.case("job-engine-5", "a")
def test_names_hold_no_slashes_and_no_capitals():
    assert child_name("1/2/3/4/5", Role("WORKER", 2, "Never", {}), 1) == "1-2-3-4-5-worker-1"


def test_replica_keys_are_read_whatever_their_case():
    job = make_job(None, None, spec={"pytorchReplicaSpecs": {"MASTER": replica(), "worker": replica(1)}})
    made = plan_for(job)
    assert list(pods_of(made)) == ["j-master-0", "j-worker-0"]
    assert list(written(made)["replicaStatuses"]) == ["Master", "Worker"]


def test_replicas_default_to_one():
    assert list(pods_of(plan_for(make_job(None, None, spec={"pytorchReplicaSpecs": {"Worker": replica(None)}})))) == [
        "j-worker-0"
    ]


def test_replica_statuses_name_their_selector():
    made = plan_for(make_job())
    assert written(made)["replicaStatuses"]["Worker"] == {
        "selector": f"{L}job-name=j,{L}operator-name=pytorchjob-controller,{L}replica-type=worker"
    }


@pytest.mark.case("job-engine-39", "a")
def test_service_ports_keep_order_and_protocol_and_every_one_has_a_name():
    ports = [
        {"name": "a", "containerPort": 8080},
        {"containerPort": 9000},
        {"containerPort": 53, "protocol": "UDP"},
    ]
    tmpl = {"spec": {"containers": [{"name": "pytorch", "image": "i", "ports": ports}]}}
    made = plan_for(make_job(1, None, tmpl=tmpl))
    assert services_of(made)["j-master-0"]["spec"]["ports"] == [
        {"name": "a", "port": 8080},
        {"name": "port-9000", "port": 9000},
        {"name": "port-53-udp", "port": 53, "protocol": "UDP"},
        {"name": "pytorchjob-port", "port": 23456},
    ]
    assert pods_of(made)["j-master-0"]["spec"]["containers"][0]["ports"] == [
        *ports,
        {"name": "pytorchjob-port", "containerPort": 23456},
    ]


@pytest.mark.case("job-engine-39", "b")
@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ((Port(2222, "x"), Port(2222, "tfjob-port")), [{"name": "x", "port": 2222}]),
        ((Port(2222, ""), Port(2222, "tfjob-port", "TCP")), [{"name": "tfjob-port", "port": 2222}]),
        ((Port(80, ""),), [{"port": 80}]),
        (
            (Port(53, ""), Port(53, "", "UDP")),
            [{"name": "port-53", "port": 53}, {"name": "port-53-udp", "port": 53, "protocol": "UDP"}],
        ),
        ((), []),
    ],
)
def test_a_port_appears_once_and_the_users_name_wins(ports: tuple[Port, ...], expected: list[Json]):
    assert service_ports(ports) == expected


def test_a_port_of_the_frameworks_name_replaces_the_default():
    ports = [{"name": "pytorchjob-port", "containerPort": 8080}]
    tmpl = {"spec": {"containers": [{"name": "pytorch", "image": "i", "ports": ports}]}}
    made = plan_for(make_job(1, None, tmpl=tmpl))
    assert pods_of(made)["j-master-0"]["spec"]["containers"][0]["ports"] == ports
    assert services_of(made)["j-master-0"]["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 8080}]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ["j-master-0"]),
        ({"elasticPolicy": {"minReplicas": 1}}, ["j-master-0", "j-worker-0"]),
    ],
)
def test_service_mode_leader_makes_only_the_services_of_rendezvous(spec: Json, expected: list[str]):
    made = plan_for(make_job(1, 2, spec=spec), options=Options(service_mode="leader"))
    assert list(services_of(made)) == expected
    assert len(pods_of(made)) == 3
    made = plan_for(make_job(1, 2, annotations={"trainop.kubeflow.org/service-mode": "leader"}, spec=spec))
    assert list(services_of(made)) == expected


@pytest.mark.case("job-engine-11", "ab")
def test_scaling_down_deletes_the_highest_and_scaling_up_creates_the_missing():
    pods = [make_pod(index=index) for index in range(3)]
    down = plan_for(make_job(None, 2, status=status_of(CREATED, RUNNING)), pods)
    assert names(down, pod_deleted) == names(down, service_deleted) == ["j-worker-2"]
    assert names(down, pod_created) == []
    up = plan_for(make_job(None, 3, status=status_of(CREATED, RUNNING)), pods[:1])
    assert names(up, pod_created) == names(up, service_created) == ["j-worker-1", "j-worker-2"]
    assert names(up, pod_deleted) == []


@pytest.mark.case("job-engine-12", "ab")
def test_gaps_above_the_wanted_number_are_not_filled():
    pods = [make_pod(index=index) for index in (0, 1, 2, 4)]
    made = plan_for(make_job(None, 3, status=status_of(CREATED)), pods)
    assert names(made, pod_deleted) == ["j-worker-4"]
    assert names(made, pod_created) == []
    # no action while it terminates
    pods = [*pods[:3], make_pod(index=4, dying=True)]
    made = plan_for(
        make_job(None, 3, status=status_of(CREATED)), pods, services=[make_service(index=i) for i in (0, 1, 2)]
    )
    assert made.actions == ()


def test_a_deletion_by_scaling_is_no_failure_when_scaled_up_again_at_once():
    world = World(make_job(1, 2, policy="Never"))
    world.settle()
    world.run()
    world.settle()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0"]
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    world.settle()
    world.reap()
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert [type_ for type_, _, _ in world.conditions] == ["Created", "Running"]


def test_roles_removed_from_the_spec_leave_nothing_behind():
    pods = [make_pod("master"), make_pod(), make_pod(index=1, dying=True)]
    status = status_of(CREATED, replicaStatuses={"Worker": {"active": 1}, "Master": {"active": 1}})
    made = plan_for(make_job(1, None, status=status), pods)
    assert names(made, pod_deleted) == ["j-worker-0"]
    assert names(made, service_deleted) == ["j-worker-0", "j-worker-1"]
    assert list(written(made)["replicaStatuses"]) == ["Master"]


def test_of_the_pods_for_one_index_only_that_of_its_name_counts():
    """Other pods owned by the job are deleted whatever their age, because the operator never created them."""
    right = make_pod(uid="b")
    older = make_pod(uid="a", name="other", phase="Succeeded", creationTimestamp=stamp(-10))
    gone = make_pod(uid="d", name="fourth", phase="Failed", dying=True)
    renamed = make_service(name="other")
    services = [make_service(), renamed]
    made = plan_for(make_job(None, 1, policy="Never", status=status_of(CREATED)), [right, older, gone], services)
    assert [action.uid for action in made.actions if pod_deleted(action)] == ["a"]
    assert names(made, service_deleted) == ["other"]
    assert written(made)["replicaStatuses"]["Worker"]["active"] == 1
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [older], [renamed])
    assert conditions_of(made.status)[-1][0] == "Created"
    assert names(made, pod_created) == names(made, service_created) == ["j-worker-0"]


@pytest.mark.parametrize(("index", "beyond"), [(2, True), (3, True), (1, False)])
def test_a_terminating_pod_beyond_the_replicas_means_nothing(index: int, beyond: bool):
    pods = [make_pod(), make_pod(index=index, dying=True)]
    services = [make_service(), make_service(index=1)]
    made = plan_for(make_job(None, 2, status=status_of(CREATED, RUNNING)), pods, services)
    assert (names(made, pod_created) == ["j-worker-1"]) is beyond
    assert (written(made)["conditions"][-1]["type"] == "Running") is beyond


def test_an_index_of_many_digits_is_an_index():
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), make_pod(index="9" * 10)])
    assert names(made, pod_deleted) == ["j-worker-9999999999"]


@pytest.mark.parametrize("index", ["-1", "x", "", "²", "1" * 11])
def test_unusable_index_labels_are_ignored_with_one_warning(index: str):
    strange = make_pod(name="strange", labels=labels("worker", index))
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(), strange], [make_service()])
    assert made.actions == ()
    (notice,) = made.notices
    assert notice.event.reason == "InvalidReplicaLabels"
    assert "strange" in notice.event.message


def test_a_pod_or_service_without_replica_type_is_ignored():
    bare = {key: value for key, value in labels("worker", 0).items() if not key.endswith("replica-type")}
    nameless = make_service(index=7, labels=labels("worker", "x"))
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod(labels=bare)], [make_service(), nameless])
    assert names(made, pod_created) == []  # it has the name
    assert [notice.event.reason for notice in made.notices] == ["InvalidReplicaLabels"]
    assert names(made, service_deleted) == []


def test_a_service_of_our_own_that_terminates_is_waited_for():
    dying = make_service(index=3, deletionTimestamp=stamp())
    made = plan_for(make_job(None, 1, status=status_of(CREATED)), [make_pod()], [make_service(), dying])
    assert made.actions == ()


def test_one_plan_creates_no_more_than_a_bounded_number():
    made = plan_for(make_job(None, 10_000))
    assert len(pods_of(made)) == len(services_of(made)) == 500
    assert names(made, pod_created)[:2] == ["j-worker-0", "j-worker-1"]


def test_one_plan_takes_no_more_pods_away_than_the_ledger_has_room_for():
    pods = [make_pod(index=index) for index in range(2_000)]
    made = plan_for(make_job(None, 1, status=status_of(CREATED, RUNNING)), pods)
    assert names(made, pod_deleted) == [f"j-worker-{index}" for index in range(1, 501)]
    rest = [*pods[:1], *pods[501:]]
    again = plan_for(make_job(None, 1, status=status_of(CREATED, RUNNING)), rest)
    assert names(again, pod_deleted)[0] == "j-worker-501"


def test_a_steady_job_needs_nothing():
    world = World(make_job())
    world.settle()
    world.run()
    world.settle()
    assert plan(PYTORCH, world.snapshot()) == Plan()


def test_created_is_set_in_the_pass_whenever_it_is_missing():
    made = plan_for(make_job(1, None, status=status_of()), [make_pod("master")])
    assert conditions_of(made.status)[0] == ("Created", "True", "PyTorchJobCreated")
    assert Count("created") in made.transitions
    again = plan_for(make_job(1, None, status=made.status), [make_pod("master")])
    assert again == Plan()


def test_a_job_that_is_being_deleted_is_left_to_garbage_collection():
    job = make_job()
    job["metadata"]["deletionTimestamp"] = stamp()
    orphan = make_pod(owner=None)
    assert plan(PYTORCH, see(job, [make_pod(index=1), orphan])) == Plan()


def test_fields_of_the_status_that_we_do_not_know_are_kept():
    made = plan_for(make_job(status={"lastReconcileTime": "x", "conditions": "nonsense"}))
    assert written(made)["lastReconcileTime"] == "x"
    assert conditions_of(made.status) == [("Created", "True", "PyTorchJobCreated")]


# Scaled away ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [None, "None", "Running"])
def test_what_was_scaled_away_goes_also_if_the_same_pass_sees_the_end(policy: str | None):
    """No clean-up policy keeps them, because the spec did not contain these pods when the job ended."""
    pods = [make_pod("master", phase="Succeeded", exit_code=0), *(make_pod(index=index) for index in range(3))]
    ended = make_pod(index=3, phase="Succeeded", exit_code=0)
    status = status_of(CREATED, RUNNING)
    made = plan_for(make_job(1, 1, run={"cleanPodPolicy": policy}, status=status), [*pods, ended])
    assert conditions_of(made.status)[-1][0] == "Succeeded"
    assert made.status_first
    kept = {"j-worker-0"} if policy != "Running" else set()
    assert set(names(made, pod_deleted)) == {"j-worker-0", "j-worker-1", "j-worker-2"} - kept
    assert set(names(made, service_deleted)) == {"j-worker-0", "j-worker-1", "j-worker-2"} - kept
    again = plan_for(make_job(1, 1, run={"cleanPodPolicy": policy}, status=made.status), [*pods, ended])
    assert names(again, pod_deleted) == names(made, pod_deleted), "even if the operator stopped in between"


def test_a_finished_job_whose_spec_cannot_be_read_any_more_keeps_its_pods():
    job = make_job(1, 2, status=status_of(CREATED, condition("Succeeded")))
    job["spec"]["pytorchReplicaSpecs"] = {"Worker": "two"}
    assert plan_for(job, [make_pod("master"), make_pod(index=1)]).actions == ()


@pytest.mark.parametrize("seen_dying", [True, False])
def test_a_replica_that_was_lost_and_then_scaled_away_is_no_failure(seen_dying: bool):
    world = World(make_job(1, 2, policy="Never"))
    world.settle()
    world.run()
    world.settle()
    world.delete("j-worker-1")
    world.settle()
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 1
    if seen_dying:
        world.settle()
    world.reap()
    world.settle()
    assert world.is_true("Running")
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 2
    world.settle()
    assert world.living() == ["j-master-0", "j-worker-0", "j-worker-1"], "it is forgotten when the job grows again"
    world.run()
    world.delete("j-worker-1")
    world.settle()
    world.reap()
    world.settle()
    assert world.is_true("Failed"), "this one was asked for"


@pytest.mark.parametrize("role", ["leader", None])
def test_a_job_role_of_the_template_stays_where_the_replica_is_no_leader(role: str | None):
    given = {} if role is None else {f"{L}job-role": role}
    found = pods_of(plan_for(make_job(1, 1, tmpl=template() | {"metadata": {"labels": given}})))
    assert found["j-worker-0"]["metadata"]["labels"].get(f"{L}job-role") == role
    assert found["j-master-0"]["metadata"]["labels"][f"{L}job-role"] == "master"


@pytest.mark.parametrize(("length", "containers", "env"), [(0, 1, 120), (100_000, 40, 0), (10, 3, 0)])
def test_a_job_whose_pods_no_request_can_hold_fails_at_once(length: int, containers: int, env: int):
    """By the size of the template, or by the operator's variables in each container."""
    large = [{"name": f"E{n}", "value": "x" * 30_000} for n in range(env)]
    more = [{"name": f"c{n}", "image": "i", "env": large} for n in range(containers)]
    tmpl = {"spec": {"containers": [*template()["spec"]["containers"], *more]}}
    elastic = {"rdzvHost": "h", "rdzvConf": [{"key": "k", "value": "x" * length}]}
    made = plan_for(make_job(None, 1, tmpl=tmpl, spec={"elasticPolicy": elastic}))
    failed = [entry["message"] for entry in written(made)["conditions"] if entry["type"] == "Failed"]
    if env or length > 10:
        words = "a pod of Worker replicas would have at least"
        assert words in failed[0]
        assert "and the API server takes no request with more than 3145728" in failed[0]
        assert list(pods_of(made)) == []
    else:
        assert failed == []
        assert list(pods_of(made)) == ["j-worker-0"]


def test_of_many_names_that_unreadable_objects_hold_twenty_are_named_and_none_is_taken():
    names = {f"j-worker-{index}": "metadata: Expected `object`, got `array`" for index in range(30)}
    seen = see(make_job(None, 32))
    made = plan(PYTORCH, replace(seen, unreadable={"Pod": names}))
    reported = [notice.event for notice in made.notices if notice.event.reason == "UnreadablePod"]
    assert len(reported) == 20
    assert reported[0].message == "Pod j-worker-0 cannot be read: metadata: Expected `object`, got `array`"
    assert [action.name for action in made.actions if pod_created(action)] == ["j-worker-30", "j-worker-31"]
    assert made.requeue_after == 30
