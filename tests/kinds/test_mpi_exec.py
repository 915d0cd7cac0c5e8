"""MPIJob with transport exec, by the acceptance cases of training-operator."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from tests.controllers.kinds import env
from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from tests.upstream import Upstream
from trainop.engine.actions import Adopt, Release, Remove
from trainop.engine.framework import JOB_ROLE, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE
from trainop.engine.gang_scheduler import choose_scheduler
from trainop.engine.parse import parse
from trainop.engine.seen import Options
from trainop.engine.steps.rights import BINDING, ROLE
from trainop.kinds.mpi.exec.kind import ACCOUNT, MPI_EXEC
from trainop.kinds.mpi.hosts import HOSTS_AT
from trainop.runtime.objects.metadata import CONFIG_MAPS, Json, Unstructured


def exec_job(workers: int = 2, **fields: Any) -> Json:
    return mpi_job(workers, name="m", transport="exec", **fields)


def world_of(workers: int = 2, *, options: Options | None = None, **fields: Any) -> MpiWorld:
    """A settled job with pending pods."""
    world = MpiWorld(exec_job(workers, **fields), options=options, ssh=False)
    world.settle()
    return world


def errors_of(job: Json) -> list[str]:
    return [str(error) for error in parse(MPI_EXEC, Unstructured(job)).errors]


def launcher_with(limit: str, **container: Any) -> Json:
    return replicas(1, resources={"limits": {limit: 1}}, **container)


# Objects --------------------------------------------------------------------------------------------------------------


@pytest.mark.case("frameworks-v1-34", "abcde")
def test_objects_of_a_job():
    world = world_of(slotsPerWorker=4, mainContainer="mpi")
    assert world.made == [
        "ServiceAccount m-launcher",
        "ConfigMap m-config",
        "Pod m-launcher",
        "Pod m-worker-0",
        "Pod m-worker-1",
        "Role m-launcher",
        "RoleBinding m-launcher",
    ]
    assert world.config["hostfile"] == "m-worker-0 slots=4\nm-worker-1 slots=4\n"
    script = '/opt/kube/kubectl exec ${POD_NAME} --container mpi -- /bin/sh -c "$*"'
    assert world.config["kubexec.sh"] == f"#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n{script}"
    assert world.config["discover_hosts.sh"] == "#!/bin/sh"
    world.run("m-worker-0", "m-worker-1")
    world.settle()
    assert world.config["discover_hosts.sh"] == "#!/bin/sh\necho m-worker-0:4\necho m-worker-1:4"
    worker = world.pods["m-worker-1"]
    (container,) = worker["spec"]["containers"]
    assert (container["command"], container["args"]) == (["sleep"], ["365d"])
    assert container["volumeMounts"] == [{"name": "mpi-job-config", "mountPath": "/etc/mpi", "readOnly": True}]
    items = [{"key": "kubexec.sh", "path": "kubexec.sh", "mode": 0o555}]
    assert worker["spec"]["volumes"] == [{"name": "mpi-job-config", "configMap": {"name": "m-config", "items": items}}]
    assert not world.services


def test_labels_of_the_pods():
    world = world_of()
    launcher, worker = (world.pods[name]["metadata"]["labels"] for name in ("m-launcher", "m-worker-1"))
    assert launcher[OPERATOR_NAME] == worker[OPERATOR_NAME] == "mpijob-controller"
    assert (launcher[REPLICA_TYPE], launcher[JOB_ROLE], REPLICA_INDEX in launcher) == ("launcher", "master", False)
    assert (worker[REPLICA_TYPE], JOB_ROLE in worker, worker[REPLICA_INDEX]) == ("worker", False, "1")


@pytest.mark.case("job-engine-30", "d")
@pytest.mark.parametrize(("named", "warnings"), [(None, 0), ("gang", 0), ("custom", 1)])
def test_only_another_scheduler_than_the_gang_scheduler_is_a_warning(named: str | None, warnings: int):
    spec = {} if named is None else {"schedulerName": named}
    job = exec_job(worker=replicas(2), launcher=replicas(1))
    for role in job["spec"]["mpiReplicaSpecs"].values():
        role["template"]["spec"].update(spec)
    world = MpiWorld(job, options=Options(gang=choose_scheduler("gang")), ssh=False)
    world.settle()
    assert {pod["spec"]["schedulerName"] for pod in world.pods.values()} == {named or "gang"}
    assert len(world.event_messages("SettedPodTemplateSchedulerName")) == warnings


def test_a_command_of_the_user_stays():
    world = world_of(worker=replicas(1, command=["mine"], args=["a"]))
    (container,) = world.pods["m-worker-0"]["spec"]["containers"]
    assert (container["command"], container["args"]) == (["mine"], ["a"])


def rules_for(*workers: str) -> list[Json]:
    """What `kubectl exec` needs, in these pods only."""
    verbs = {"pods": "get", "pods/exec": "create"}
    return [
        {"apiGroups": [""], "resources": [resource], "verbs": [verb], "resourceNames": [*workers]}
        for resource, verb in verbs.items()
    ]


def test_the_launcher_reads_and_executes_in_its_own_workers_only():
    world = world_of()
    rules = world.companions[ROLE.resource]["m-launcher"]["rules"]
    assert rules == rules_for("m-worker-0", "m-worker-1")
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 3
    world.settle()
    assert world.companions[ROLE.resource]["m-launcher"]["rules"][1]["resourceNames"][2] == "m-worker-2"


@pytest.mark.case("frameworks-v1-40", "ce")
def test_without_workers_nothing_may_be_executed():
    world = world_of(worker=replicas(0))
    assert not world.companions[ROLE.resource]
    assert not world.companions[BINDING.resource]
    assert world.living() == ["m-launcher"]
    assert [each["name"] for each in world.pods["m-launcher"]["spec"]["initContainers"]] == ["kubectl-delivery"]
    world.settle()
    assert world.created_pods == 1


@pytest.mark.case("frameworks-v1-37", "a")
def test_an_account_of_the_user_is_bound():
    world = world_of(launcher=replicas(1, template={"serviceAccountName": "launcher-sa"}))
    assert world.companions[ACCOUNT.resource] == {}
    subject = {"kind": "ServiceAccount", "name": "launcher-sa", "namespace": "bar"}
    assert world.companions[BINDING.resource]["m-launcher"]["subjects"] == [subject]
    assert world.pods["m-launcher"]["spec"]["serviceAccountName"] == "launcher-sa"


def test_a_foreign_config_map_with_our_labels():
    world = MpiWorld(exec_job(), ssh=False)
    foreign = {"metadata": {"name": "m-config", "namespace": "bar", "uid": "theirs"}}
    world.companions[CONFIG_MAPS]["m-config"] = foreign
    world.step()
    text = 'Resource "m-config" of MPIJobKind "ConfigMap" already exists and is not managed by MPIJob'
    assert world.event_messages("ErrResourceExists") == [text]
    assert world.pods == {}


# The launcher ---------------------------------------------------------------------------------------------------------


def test_the_launcher_waits_for_the_workers_before_its_program_starts():
    world = world_of(options=Options(mpi_delivery_image="mine"))
    spec = world.pods["m-launcher"]["spec"]
    delivery, waiting = spec["initContainers"]
    assert (delivery["name"], delivery["image"], delivery["imagePullPolicy"]) == (
        "kubectl-delivery",
        "mine",
        "IfNotPresent",
    )
    assert [(each["name"], each["value"]) for each in delivery["env"]] == [
        ("TARGET_DIR", "/opt/kube"),
        ("NAMESPACE", "bar"),
    ]
    amounts = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}
    assert delivery["resources"] == {"limits": amounts, "requests": amounts}
    assert "command" not in delivery
    assert waiting["image"] == "mine"
    assert waiting["command"][:2] == ["/bin/sh", "-c"]
    assert spec["serviceAccountName"] == "m-launcher"
    assert [volume["name"] for volume in spec["volumes"]] == ["mpi-job-kubectl", "mpi-job-config"]


@pytest.mark.case("frameworks-v1-35", "ab")
@pytest.mark.parametrize(
    ("limit", "is_gpu"), [("nvidia.com/gpu", True), ("vendor-domain/gpu", True), ("vendor-domain/resourcetype", False)]
)
def test_a_gpu_launcher_is_a_host(limit: str, is_gpu: bool):
    world = world_of(launcher=launcher_with(limit), slotsPerWorker=4)
    assert world.config["hostfile"].startswith("m-launcher slots=4\n") is is_gpu
    first = "\necho m-launcher:4\n" if is_gpu else ""
    assert world.config["discover_hosts.sh"] == f"#!/bin/sh{first}"
    found = env(world.pods["m-launcher"])
    blank = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    assert {name: value for name, value in found.items() if "NVIDIA" in name} == ({} if is_gpu else blank)


@pytest.mark.case("frameworks-v1-36", "ab")
def test_the_users_bootstrap_of_intel_mpi_stays():
    def variables(*given: str) -> list[str]:
        own = [{"name": name, "value": "RSH"} for name in given]
        world = world_of(launcher=replicas(1, env=own))
        entries = world.pods["m-launcher"]["spec"]["containers"][0]["env"]
        return [f"{each['name']}={each['value']}" for each in entries if each["name"].startswith("I_MPI")]

    bootstrap, execution = "I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC"
    assert variables() == [f"{bootstrap}=rsh", f"{execution}=/etc/mpi/kubexec.sh"]
    assert variables(bootstrap) == [f"{bootstrap}=RSH", f"{execution}=/etc/mpi/kubexec.sh"]
    assert variables(bootstrap, execution) == [f"{bootstrap}=RSH", f"{execution}=RSH"]


# State ----------------------------------------------------------------------------------------------------------------


@pytest.mark.case("frameworks-v1-38", "abc")
def test_the_job_runs_when_all_its_pods_do_and_ends_with_its_launcher():
    world = world_of(8)
    world.run("m-launcher")
    world.settle()
    assert not world.is_true("Running")
    world.run()
    world.settle()
    assert world.status["replicaStatuses"] == {"Launcher": {"active": 1}, "Worker": {"active": 8}}
    assert world.conditions[-1] == ("Running", "True", "MPIJobRunning")
    world.end("m-launcher", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "MPIJobSucceeded")
    assert world.status["replicaStatuses"] == {"Launcher": {"succeeded": 1}, "Worker": {}}
    assert world.event_messages("MPIJobSucceeded") == ["MPIJob m is successfully completed."]


@pytest.mark.case("frameworks-v1-38", "de")
@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"run": {"cleanPodPolicy": "Running"}}, ["m-launcher"]),
        ({"run": {"cleanPodPolicy": "None"}, "cleanPodPolicy": "All"}, ["m-launcher", "m-worker-0"]),
        ({}, ["m-launcher", "m-worker-0"]),
        ({"cleanPodPolicy": "Running"}, ["m-launcher"]),
        ({"cleanPodPolicy": "All"}, []),
    ],
)
def test_clean_up(fields: Json, left: list[str]):
    world = world_of(1, **fields)
    world.run()
    world.end("m-launcher", 0)
    world.settle()
    assert world.living() == left


@pytest.mark.case("frameworks-v1-39", "abc")
def test_suspension():
    world = world_of()
    world.run()
    world.settle()
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.living() == []
    assert list(world.companions[CONFIG_MAPS]) == ["m-config"]
    assert list(world.companions[ROLE.resource]) == ["m-launcher"]
    assert [type_ for type_, _, _ in world.conditions] == ["Created", "Running", "Suspended"]
    world.spec["runPolicy"] = {"suspend": False}
    world.reap()
    world.settle()
    assert world.living() == ["m-launcher", "m-worker-0", "m-worker-1"]


@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
def test_a_failed_launcher_is_restarted(policy: str):
    """Upstream never recreates it, so that the job stays Restarting (kubeflow/training-operator 1768)."""
    world = world_of(launcher=replicas(1, policy))
    world.run()
    world.end("m-launcher", 1)
    world.settle()
    assert world.conditions[-1] == ("Restarting", "True", "MPIJobRestarting")
    world.reap()
    world.settle()
    assert "m-launcher" in world.living()
    world.run()
    world.settle()
    assert world.is_true("Running")


@pytest.mark.parametrize(("code", "restarted"), [(137, True), (1, False)])
def test_exit_codes_are_those_of_the_first_container(code: int, restarted: bool):
    world = world_of(launcher=replicas(1, "ExitCode"))
    world.run()
    world.end("m-launcher", code)
    world.settle()
    assert world.conditions[-1][0] == ("Restarting" if restarted else "Failed")


def test_an_evicted_worker_fails_the_job_with_that_reason():
    world = world_of(8)
    world.run()
    world.set_pod("m-worker-3", "Failed", reason="Evicted")
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "MPIJobEvicted")
    assert world.status["conditions"][-1]["message"] == Upstream("1/8 workers are evicted")
    assert world.status["completionTime"]


def test_an_evicted_launcher_fails_the_job_with_that_reason_and_upstreams_message():
    world = world_of(2, run={"cleanPodPolicy": "Running"})
    world.run()
    world.set_pod("m-launcher", "Failed", reason="Evicted", message="low on memory")
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "MPIJobEvicted")
    assert world.status["conditions"][-1]["message"] == Upstream("MPIJob bar/m has failed")
    assert world.event_messages("MPIJobEvicted") == [Upstream("MPIJob bar/m has failed")]
    assert world.status["replicaStatuses"] == {"Launcher": {"failed": 1}, "Worker": {}}


def test_a_running_launcher_is_not_counted_any_more_once_it_is_deleted():
    world = world_of(2, run={"cleanPodPolicy": "Running"})
    world.run()
    world.settle()
    assert world.status["replicaStatuses"]["Launcher"] == {"active": 1}
    world.set_pod("m-worker-0", "Failed")
    world.settle()
    assert world.is_true("Failed")
    assert world.status["replicaStatuses"]["Launcher"] == {}


def test_a_job_that_runs_has_upstreams_event():
    world = world_of(2)
    world.run("m-launcher")
    world.settle()
    assert world.event_messages("MPIJobRunning") == []
    world.run()
    world.settle()
    world.settle()
    assert world.event_messages("MPIJobRunning") == ["MPIJob bar/m is running"]
    assert world.status["conditions"][-1]["message"] == "MPIJob m is running."


def test_the_event_about_a_restart_policy_in_a_template_has_upstreams_reason():
    world = world_of(1, launcher=replicas(1, template={"restartPolicy": "Always"}))
    assert len(world.event_messages("SettedPodTemplateRestartPolicy")) == 1
    assert world.event_messages("SetPodTemplateRestartPolicy") == []


def test_a_worker_that_is_taken_over_needs_no_label_with_an_index():
    """The launcher of training-operator has none."""
    world = world_of(0)
    assert REPLICA_INDEX not in world.pods["m-launcher"]["metadata"]["labels"]
    world.settle()
    assert world.created_pods == 1
    assert world.event_messages("InvalidReplicaLabels") == []


OTHER = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "m", "uid": "other", "controller": True}


@pytest.mark.parametrize("name", ["m-launcher", "m-worker-0"])
@pytest.mark.parametrize("owners", [[], [OTHER]], ids=["of nobody", "of another"])
@pytest.mark.parametrize("ready", [True, False], ids=["companions exist", "no companions yet"])
def test_a_pod_of_that_name_that_is_not_the_jobs(name: str, owners: list[Json], ready: bool):
    """Never taken over, as by training-operator's MPIJob controller, also with all labels."""
    world = world_of(1)
    world.pods[name]["metadata"] |= {"ownerReferences": owners, "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    if not ready:
        for found in world.companions.values():
            found.clear()
    made = world.step()
    text = f'Resource "{name}" of MPIJobKind "Pod" already exists and is not managed by MPIJob'
    assert text in [notice.event.message for notice in made.notices if notice.event.reason == "ErrResourceExists"]
    assert not [action for action in made.actions if isinstance(action, Adopt | Remove | Release)]
    world.settle()
    assert world.pods[name]["metadata"]["ownerReferences"] == owners
    assert not world.is_true("Running")


# The hosts ------------------------------------------------------------------------------------------------------------


def test_the_list_of_running_hosts_is_not_written_for_every_pod():
    world = world_of(30)
    written = world.companions[CONFIG_MAPS]["m-config"]["metadata"]["annotations"][HOSTS_AT]
    for index in range(29):
        world.run(f"m-worker-{index}")
        made = world.step()
        assert made.actions == ()
        assert made.requeue_after is not None
        assert made.requeue_after <= 15
    assert world.config["discover_hosts.sh"] == "#!/bin/sh"
    world.pass_time(15)
    world.settle()
    assert world.config["discover_hosts.sh"].count("echo") == 29
    assert world.companions[CONFIG_MAPS]["m-config"]["metadata"]["annotations"][HOSTS_AT] > written
    world.run("m-worker-29")
    world.settle()
    assert world.config["discover_hosts.sh"].count("echo") == 30
    world.set_pod("m-worker-3", "Pending")
    world.settle()
    assert "m-worker-3:" not in world.config["discover_hosts.sh"]


def test_a_script_without_a_time_is_replaced():
    world = world_of()
    config = world.companions[CONFIG_MAPS]["m-config"]
    del config["metadata"]["annotations"][HOSTS_AT]
    world.run("m-worker-0")
    world.settle()
    assert world.config["discover_hosts.sh"] == "#!/bin/sh\necho m-worker-0:1"
    world.companions[CONFIG_MAPS]["m-config"]["data"] = "nonsense"
    world.settle()
    assert world.config["discover_hosts.sh"] == "#!/bin/sh\necho m-worker-0:1"


# Validation -----------------------------------------------------------------------------------------------------------


@pytest.mark.case("frameworks-v1-40", "ab")
@pytest.mark.parametrize(
    ("specs", "error"),
    [
        ({"Launcher": replicas(2)}, "spec.mpiReplicaSpecs[Launcher].replicas: Forbidden: must be 1"),
        ({"Worker": replicas(1)}, "spec.mpiReplicaSpecs[Launcher]: Required value: must be present"),
        (
            {"Launcher": replicas(1, image="")},
            "spec.mpiReplicaSpecs[Launcher].template.spec.containers[0].image: Required value: must be required",
        ),
        (
            {"Launcher": replicas(1), "Wrecker": replicas(1)},
            'spec.mpiReplicaSpecs[Wrecker]: Unsupported value: "Wrecker": supported values: "Launcher", "Worker"',
        ),
    ],
)
def test_a_job_that_can_never_run(specs: Json, error: str):
    job = exec_job()
    job["spec"]["mpiReplicaSpecs"] = specs
    assert errors_of(job) == [error]
    world = MpiWorld(job, ssh=False)
    world.settle()
    assert world.made == []
    assert world.event_messages("MPIJobFailedValidation") == [f"MPIJob failed validation because {error}"]
    assert world.conditions[-1] == ("Failed", "True", "MPIJobFailedValidation")


def test_fields_of_this_kind():
    assert errors_of(exec_job(slotsPerWorker=-1, mainContainer="a b")) == [
        "spec.slotsPerWorker: Invalid value: -1: must be greater than or equal to 0",
        'spec.mainContainer: Invalid value: "a b": must be the name of a container',
    ]
    assert errors_of(exec_job(run={"managedBy": ""})) == []
    (error,) = errors_of(exec_job(run={"managedBy": "me"}))
    managers = '"kueue.x-k8s.io/multikueue", "kubeflow.org/training-operator", "kubeflow.org/mpi-operator"'
    assert error.endswith(f"supported values: {managers}")


def test_names_need_not_be_those_of_services():
    job = exec_job()
    for name, count in (("1-job.of-mine", 0), ("a" * 63, 0), ("a" * 64, 1)):
        job["metadata"]["name"] = name
        assert len(errors_of(job)) == count


def test_hosts_beyond_the_size_of_a_config_map_are_one_error():
    (error,) = errors_of(exec_job(40_000))
    assert error.startswith("spec.mpiReplicaSpecs[Worker].replicas: Forbidden: the ConfigMap with the hosts of 40000")
    assert errors_of(exec_job(20_000)) == []


@pytest.mark.parametrize("manager", ["", "kubeflow.org/training-operator", "kubeflow.org/mpi-operator"])
def test_managers_that_mean_this_operator(manager: str):
    assert "m-launcher" in world_of(run={"managedBy": manager}).living()


def test_a_job_of_multikueue_is_left_alone():
    assert world_of(run={"managedBy": "kueue.x-k8s.io/multikueue"}).made == []


def calls_of_first_plan(workers: int) -> int:
    """How many functions the first plan calls."""
    world = MpiWorld(exec_job(workers), ssh=False)
    snapshot = world.snapshot()
    calls = itertools.count()
    sys.setprofile(lambda _frame, event, _argument: event == "call" and next(calls))
    try:
        world.kind.plan(snapshot)
    finally:
        sys.setprofile(None)
    return next(calls)


def test_the_work_of_a_first_plan_grows_no_faster_than_the_job():
    assert calls_of_first_plan(1000) < 5 * calls_of_first_plan(200)
