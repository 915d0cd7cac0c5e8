"""MPIJob with transport ssh, by the acceptance cases of mpi-operator."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.engine.builders import UID, applied, pod_created, pod_deleted, stamp
from tests.kinds.mpi_world import MAIN, MpiWorld, mpi_job, replicas, running, world_of
from tests.upstream import KEEPS_LOG, Upstream
from trainop.engine.actions import Ensure, How, Patch, Remove
from trainop.engine.pod_status import MAX_STATUS_MESSAGE_LENGTH, PodStatus
from trainop.engine.seen import Options, Pod
from trainop.kinds.mpi.ssh.annotations import CLEAN_LAUNCHER, REMOTE_SHELL
from trainop.kinds.mpi.ssh.job import parse_ssh
from trainop.kinds.mpi.ssh.keys import make_keys
from trainop.runtime.objects.metadata import CONFIG_MAPS, Json, Unstructured

L = "training.kubeflow.org/"
LAUNCHER = "spec.mpiReplicaSpecs[Launcher]"


def errors_of(job: Json) -> list[str]:
    return [str(error) for error in parse_ssh(Unstructured(job), Options())[1]]


def variables(container: Json) -> list[str]:
    return [f"{each['name']}={each['value']}" for each in container["env"]]


# Objects --------------------------------------------------------------------------------------------------------------


@pytest.mark.case("mpi-v2beta1-1", "abc")
@pytest.mark.parametrize("implementation", ["OpenMPI", "Intel", "MPICH"])
def test_launcher_and_five_workers(implementation: str):
    world = MpiWorld(mpi_job(5, mpiImplementation=implementation))
    made = world.step()
    workers = [f"Pod foo-worker-{index}" for index in range(5)]
    assert world.made == ["Service foo", "ConfigMap foo-config", "Secret foo-ssh", *workers, "Job foo-launcher"]
    assert made.status is not None
    (created,) = made.status["conditions"]
    assert (created["type"], created["status"], created["reason"]) == ("Created", "True", "MPIJobCreated")
    assert created["message"] == "MPIJob bar/foo is created."
    assert made.status["replicaStatuses"] == {"Launcher": {}, "Worker": {}}
    assert made.status["startTime"]
    assert world.step().status is None


def test_every_child_is_the_jobs():
    world = world_of()
    objects = [*world.services.values(), *world.pods.values(), world.config_map, world.launcher, world.secret]
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "foo", "uid": UID}
    for child in objects:
        assert child["metadata"]["ownerReferences"] == [owner | {"controller": True, "blockOwnerDeletion": True}]
    for child in (*world.services.values(), world.config_map, world.launcher, world.secret):
        assert child["metadata"]["labels"]["app"] == "foo"


def test_the_service_selects_all_pods():
    selector = {f"{L}operator-name": "mpi-operator", f"{L}job-name": "foo"}
    world = world_of()
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": False}
    assert world.services["foo"]["spec"] == spec
    for labels in (
        world.pods["foo-worker-0"]["metadata"]["labels"],
        world.launcher["spec"]["template"]["metadata"]["labels"],
    ):
        assert selector.items() <= labels.items()
    world.spec["runLauncherAsWorker"] = True
    world.settle()
    assert world.services["foo"]["spec"] == spec | {"publishNotReadyAddresses": True}


@pytest.mark.case("mpi-v2beta1-7", "a")
def test_hostfile_of_open_mpi():
    world = world_of(1, name="openmpi-with-slots", namespace="tenant-a", slotsPerWorker=10)
    line = "openmpi-with-slots-worker-0.openmpi-with-slots.tenant-a.svc slots=10\n"
    assert world.config["hostfile"] == line


@pytest.mark.case("mpi-v2beta1-8", "a")
def test_hostfile_of_mpich():
    job = {"name": "mpich-with-slots", "namespace": "project-x", "mpiImplementation": "MPICH"}
    world = world_of(1, options=Options(mpi_cluster_domain="cluster.local"), **job)
    line = "mpich-with-slots-worker-0.mpich-with-slots.project-x.svc.cluster.local:1\n"
    assert world.config["hostfile"] == line


@pytest.mark.case("mpi-v2beta1-9", "abc")
def test_hostfile_with_the_launcher():
    world = world_of(2, name="j", namespace="n", runLauncherAsWorker=True)
    assert world.config["hostfile"] == (
        "j-launcher.j.n.svc slots=1\nj-worker-0.j.n.svc slots=1\nj-worker-1.j.n.svc slots=1\n"
    )
    assert world.services["j"]["spec"]["publishNotReadyAddresses"] is True
    alone = world_of(0, name="j", namespace="n", runLauncherAsWorker=True)
    assert alone.config["hostfile"] == "j-launcher.j.n.svc slots=1\n"
    assert world_of(0).config["hostfile"] == ""


@pytest.mark.case("mpi-v2beta1-10", "abc")
def test_discovery_script():
    world = world_of(3, name="test-job", namespace="default")
    assert world.config["discover_hosts.sh"] == "#!/bin/sh\n"
    world.run("test-job-worker-2", "test-job-worker-0", "test-job-worker-1")
    world.pass_time(20)
    world.settle()
    hosts = "".join(f"echo test-job-worker-{index}.test-job.default.svc\n" for index in range(3))
    assert world.config["discover_hosts.sh"] == f"#!/bin/sh\n{hosts}"
    world.delete("test-job-worker-1")
    world.settle()
    assert "worker-1" not in world.config["discover_hosts.sh"]
    alone = world_of(1, runLauncherAsWorker=True)
    assert alone.config["discover_hosts.sh"] == "#!/bin/sh\necho foo-launcher.foo.bar.svc\n"


@pytest.mark.case("mpi-v2beta1-11", "abcd")
def test_secret():
    world = world_of()
    assert world.secret["type"] == "kubernetes.io/ssh-auth"
    data = {name: base64.b64decode(value) for name, value in world.secret["data"].items()}
    assert data.keys() == {"ssh-privatekey", "ssh-publickey"}
    assert data["ssh-privatekey"].startswith(b"-----BEGIN EC PRIVATE KEY-----\n")
    key = serialization.load_pem_private_key(data["ssh-privatekey"], None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP521R1)
    public = serialization.load_ssh_public_key(data["ssh-publickey"])
    assert public == key.public_key()
    assert data["ssh-publickey"].startswith(b"ecdsa-sha2-nistp521 ")
    assert data["ssh-publickey"].endswith(b"\n")
    assert data["ssh-publickey"].count(b" ") == 1
    before = dict(world.secret)
    world.delete("foo-worker-0")
    world.reap()
    world.settle()
    assert world.secret == before
    assert make_keys() != make_keys()


# Pods -----------------------------------------------------------------------------------------------------------------


@pytest.mark.case("mpi-v2beta1-12", "abcd")
def test_worker_by_default():
    pod = world_of(1).pods["foo-worker-0"]
    assert pod["metadata"]["labels"] == {
        f"{L}operator-name": "mpi-operator",
        f"{L}job-name": "foo",
        f"{L}job-role": "worker",
        f"{L}replica-index": "0",
    }
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert container["command"] == ["/usr/sbin/sshd", "-De"]
    assert variables(container) == ["K_MPI_JOB_ROLE=worker"]
    assert container["volumeMounts"] == [{"name": "ssh-auth", "mountPath": "/root/.ssh"}]
    items = [
        {"key": "ssh-privatekey", "path": "id_rsa"},
        {"key": "ssh-publickey", "path": "id_rsa.pub"},
        {"key": "ssh-publickey", "path": "authorized_keys"},
    ]
    secret = {"secretName": "foo-ssh", "items": items, "defaultMode": 384}
    assert spec["volumes"] == [{"name": "ssh-auth", "secret": secret}]
    assert spec["dnsConfig"] == {"searches": ["foo.bar.svc.cluster.local"]}
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("foo-worker-0", "foo", "Never")
    given = world_of(1, worker=replicas(1, args=["x"])).pods["foo-worker-0"]["spec"]["containers"][0]
    assert "command" not in given


@pytest.mark.case("mpi-v2beta1-13", "abc")
def test_launcher_by_default():
    job = world_of(1).launcher["spec"]
    assert job.keys() == {"template", "podReplacementPolicy"}
    assert job["podReplacementPolicy"] == "Failed"
    spec = job["template"]["spec"]
    (container,) = spec["containers"]
    assert variables(container) == [
        "K_MPI_JOB_ROLE=launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames=true",
        "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args=-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots=1",
        "NVIDIA_VISIBLE_DEVICES=",
        "NVIDIA_DRIVER_CAPABILITIES=",
    ]
    assert [(mount["name"], mount["mountPath"]) for mount in container["volumeMounts"]] == [
        ("ssh-auth", "/root/.ssh"),
        ("mpi-job-config", "/etc/mpi"),
    ]
    items = [
        {"key": "hostfile", "path": "hostfile", "mode": 0o444},
        {"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555},
    ]
    assert spec["volumes"][1] == {"name": "mpi-job-config", "configMap": {"name": "foo-config", "items": items}}
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("foo-launcher", "foo", "OnFailure")
    assert "command" not in container
    assert f"{L}replica-index" not in job["template"]["metadata"]["labels"]


@pytest.mark.case("mpi-v2beta1-14", "abcde")
def test_everything_overridden():
    own: Json = {
        "env": [{"name": "FOO", "value": "bar"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    second = {"name": "second", "image": "i"}
    template = {
        "hostNetwork": True,
        "containers": [{"name": "c", "image": "i", **own}, second],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "dnsConfig": {"searches": ["mine"]},
    }
    world = world_of(
        name="bar",
        namespace="foo",
        launcher=replicas(1, "Never", template),
        worker=replicas(13, "OnFailure", template),
        mpiImplementation="Intel",
        slotsPerWorker=5,
        sshAuthMountPath="/home/mpiuser/.ssh",
        run={"ttlSecondsAfterFinished": 1, "activeDeadlineSeconds": 2, "backoffLimit": 3},
    )
    job = world.launcher["spec"]
    assert {name: job[name] for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")} == {
        "ttlSecondsAfterFinished": 1,
        "activeDeadlineSeconds": 2,
        "backoffLimit": 3,
    }
    launcher, worker = job["template"]["spec"], world.pods["bar-worker-12"]["spec"]
    assert variables(launcher["containers"][0])[:5] == [
        "FOO=bar",
        "K_MPI_JOB_ROLE=launcher",
        "I_MPI_HYDRA_HOST_FILE=/etc/mpi/hostfile",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS=-o ConnectionAttempts=10",
        "I_MPI_PERHOST=5",
    ]
    assert variables(worker["containers"][0]) == ["FOO=bar", "K_MPI_JOB_ROLE=worker"]
    for spec in (launcher, worker):
        assert [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]][:2] == [
            "/data",
            "/home/mpiuser/.ssh",
        ]
        assert "defaultMode" not in spec["volumes"][1]["secret"]
        assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert spec["containers"][1] == {**second, **KEEPS_LOG}
    assert worker["dnsConfig"]["searches"] == ["mine", "bar.foo.svc.cluster.local"]
    assert (launcher["restartPolicy"], worker["restartPolicy"]) == ("Never", "OnFailure")
    assert world.pods["bar-worker-12"]["metadata"]["labels"][f"{L}replica-index"] == "12"


def test_variables_of_mpich():
    container = world_of(1, mpiImplementation="MPICH").launcher["spec"]["template"]["spec"]["containers"][0]
    assert variables(container)[1:3] == [
        "HYDRA_HOST_FILE=/etc/mpi/hostfile",
        "HYDRA_LAUNCH_EXTRA_ARGS=-o ConnectionAttempts=10",
    ]


@pytest.mark.case("mpi-v2beta1-15", "ab")
def test_the_launcher_as_a_worker():
    world = world_of(1, runLauncherAsWorker=True)
    template = world.launcher["spec"]["template"]
    assert template["metadata"]["labels"][f"{L}replica-index"] == "0"
    assert "NVIDIA" not in json.dumps(template)
    assert world.pods["foo-worker-0"]["metadata"]["labels"][f"{L}replica-index"] == "1"


@pytest.mark.case("mpi-v2beta1-16", "a")
def test_a_restart_policy_in_the_template_of_the_launcher():
    world = world_of(1, launcher=replicas(1, "Never", {"restartPolicy": "Always"}))
    assert world.event_messages("SetPodTemplateRestartPolicy") == [
        "Restart policy in pod template overridden by restart policy in replica spec"
    ]
    assert world.launcher["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("implementation", "expected"),
    [
        ("OpenMPI", "OMPI_MCA_plm_rsh_agent=rsh"),
        ("Intel", "I_MPI_HYDRA_BOOTSTRAP=rsh"),
        ("MPICH", "HYDRA_LAUNCHER=rsh"),
    ],
)
def test_rsh(implementation: str, expected: str):
    job = mpi_job(1, mpiImplementation=implementation, annotations={REMOTE_SHELL: "rsh"})
    (error,) = errors_of(job)
    assert error.endswith(
        "containers[0].command: Required value: must start a server for rsh, since the default is sshd"
    )
    job["spec"]["mpiReplicaSpecs"]["Worker"] = replicas(1, command=["rshd"])
    world = MpiWorld(job)
    world.settle()
    found = variables(world.launcher["spec"]["template"]["spec"]["containers"][0])
    assert expected in found
    assert not any("ConnectionAttempts" in each for each in found)


# Validation -----------------------------------------------------------------------------------------------------------


@pytest.mark.case("mpi-v2beta1-2", "ab")
def test_an_empty_job():
    job = mpi_job()
    del job["spec"]
    world = MpiWorld(job)
    world.settle()
    assert world.made == []
    assert world.status == {}
    (text,) = world.event_messages("ValidationError")
    assert text == ("Found validation errors: spec.mpiReplicaSpecs: Required value: must have replica specs")


@pytest.mark.case("mpi-v2beta1-3", "abc")
@pytest.mark.parametrize(
    ("name", "workers", "valid"),
    [
        ("this-name-is-waaaaaaaay-too-long-for-a-worker-hostname", 1000, False),
        ("1-foo", 1, False),
        ("a" * 54, 1, True),
        ("a" * 55, 1, False),
    ],
)
def test_names(name: str, workers: int, valid: bool):
    found = errors_of(mpi_job(workers, name=name))
    if valid:
        assert found == []
    else:
        (error,) = found
        host = f"{name}-worker-{workers - 1}"
        detail = f'will not able to create pod and service with invalid DNS label "{host}": '
        assert error.startswith(f'metadata.name: Invalid value: "{name}": {detail}')


@pytest.mark.case("mpi-v2beta1-4", "a")
def test_errors_of_the_replicas_in_order():
    at = "spec.mpiReplicaSpecs"
    assert errors_of(mpi_job(launcher=replicas(2, "Always"), worker=replicas(0, "Invalid"))) == [
        f'{at}[Launcher].restartPolicy: Unsupported value: "Always": supported values: "Never", "OnFailure"',
        f"{at}[Launcher].replicas: Invalid value: 2: must be 1",
        f'{at}[Worker].restartPolicy: Unsupported value: "Invalid": supported values: "Never", "OnFailure"',
        f"{at}[Worker].replicas: Invalid value: 0: must be greater than or equal to 1",
    ]


@pytest.mark.case("mpi-v2beta1-5", "a")
def test_workers_without_a_number():
    assert errors_of(mpi_job(worker=replicas(None))) == [
        "spec.mpiReplicaSpecs[Worker].replicas: Invalid value: 0: must be greater than or equal to 1"
    ]


@pytest.mark.case("mpi-v2beta1-6", "a")
def test_errors_of_the_other_fields_in_order():
    policy = {
        "cleanPodPolicy": "unknown",
        "ttlSecondsAfterFinished": -1,
        "activeDeadlineSeconds": -1,
        "backoffLimit": -1,
    }
    at, least = "spec.runPolicy", "Invalid value: -1: must be greater than or equal to 0"
    assert errors_of(mpi_job(run=policy, mpiImplementation="Unknown")) == [
        f'{at}.cleanPodPolicy: Unsupported value: "unknown": supported values: "All", "None", "Running"',
        f"{at}.ttlSecondsAfterFinished: {least}",
        f"{at}.activeDeadlineSeconds: {least}",
        f"{at}.backoffLimit: {least}",
        'spec.mpiImplementation: Unsupported value: "Unknown": supported values: "Intel", "MPICH", "OpenMPI"',
    ]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"slotsPerWorker": -1}, "spec.slotsPerWorker: Invalid value: -1: must be greater than or equal to 0"),
        (
            {"sshAuthMountPath": ""},
            "spec.sshAuthMountPath: Required value: must have a mount path for SSH credentials",
        ),
        (
            {"launcherCreationPolicy": "Later"},
            (
                'spec.launcherCreationPolicy: Unsupported value: "Later": supported values: "AtStartup", '
                '"WaitForWorkersReady"'
            ),
        ),
        (
            {"run": {"managedBy": "me"}},
            (
                'spec.runPolicy.managedBy: Unsupported value: "me": supported values: "kubeflow.org/mpi-operator", '
                '"kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"'
            ),
        ),
        (
            {"launcher": {"replicas": 1}},
            f"{LAUNCHER}.template.spec.containers: Required value: must define at least one container",
        ),
        (
            {"worker": replicas(1, template={"dnsConfig": {"searches": "x"}})},
            'spec.mpiReplicaSpecs[Worker].template.spec.dnsConfig.searches: Invalid value: "x": must be a list',
        ),
        (
            {"worker": replicas("many")},  # type: ignore[arg-type]
            'spec.mpiReplicaSpecs[Worker].replicas: Invalid value: "many": must be a whole number',
        ),
    ],
)
def test_further_rules(fields: Json, error: str):
    job = mpi_job(**fields)
    assert errors_of(job) == [error]
    world = MpiWorld(job)
    world.settle()
    assert world.made == []


def test_a_missing_launcher():
    job = mpi_job()
    del job["spec"]["mpiReplicaSpecs"]["Launcher"]
    assert errors_of(job) == ["spec.mpiReplicaSpecs[Launcher]: Required value: must have Launcher replica spec"]


def test_hosts_beyond_the_size_of_a_config_map_are_one_error():
    (error,) = errors_of(mpi_job(20_000))
    assert error.startswith("spec.mpiReplicaSpecs[Worker].replicas: Forbidden: the ConfigMap with the hosts of 20000")
    assert errors_of(mpi_job(10_000)) == []


def test_a_begun_job_goes_on_with_an_invalid_field():
    world = running()
    world.spec["slotsPerWorker"] = -1
    world.delete("foo-worker-1")
    world.reap()
    world.settle()
    assert world.living() == ["foo-launcher-x", "foo-worker-0", "foo-worker-1"]
    assert len(world.event_messages("ValidationError")) == 1
    world.spec["mpiReplicaSpecs"]["Launcher"] = "none"
    assert world.step().actions == ()


# Objects of others ----------------------------------------------------------------------------------------------------

FOREIGN = {"uid": "theirs", "namespace": "bar"}


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", "Pod", "Job"])
def test_a_foreign_object_with_our_labels(kind: str):
    """Objects without them are found when ours are created: tests/controllers/test_mpi.py."""
    world = MpiWorld(mpi_job(2))
    name = {"Service": "foo", "ConfigMap": "foo-config", "Pod": "foo-worker-1", "Job": "foo-launcher"}[kind]
    stores = {"Service": world.services, "ConfigMap": world.companions[CONFIG_MAPS], "Pod": world.pods}
    store = stores.get(kind, world.companions[world.jobs])
    store[name] = {"metadata": {**FOREIGN, "name": name}}
    world.settle()
    text = f'Resource "{name}" of Kind "{kind}" already exists and is not managed by MPIJob'
    assert world.event_messages("ErrResourceExists") == [text]
    assert not any(each.startswith(("Pod", "Job")) for each in world.made)


def test_the_pod_of_a_previous_job_of_this_name_only_delays():
    world = MpiWorld(mpi_job(1))
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "foo", "uid": "old", "controller": True}
    world.pods["foo-worker-0"] = {"metadata": {**FOREIGN, "name": "foo-worker-0", "ownerReferences": [owner]}}
    made = world.step()
    assert made.requeue_after == 30
    assert world.event_messages("ErrResourceExists") == []
    assert "Job foo-launcher" not in world.made
    del world.pods["foo-worker-0"]
    world.settle()
    assert "Job foo-launcher" in world.made


# State ----------------------------------------------------------------------------------------------------------------


@pytest.mark.case("mpi-v2beta1-18", "ab")
def test_running():
    world = world_of(8)
    world.launch()
    world.settle()
    assert [type_ for type_, _, _ in world.conditions] == ["Created"]
    assert world.status["replicaStatuses"] == {"Launcher": {"active": 1}, "Worker": {}}
    world.run_workers()
    world.settle()
    assert world.conditions[-1] == ("Running", "True", "MPIJobRunning")
    assert world.condition("Running")["message"] == "MPIJob bar/foo is running."
    assert world.status["replicaStatuses"] == {"Launcher": {"active": 1}, "Worker": {"active": 8}}
    assert world.event_messages("MPIJobRunning") == ["MPIJob bar/foo is running"]
    world.set_pod("foo-worker-1", "Pending")
    world.settle()
    world.run_workers()
    world.settle()
    assert len(world.event_messages("MPIJobRunning")) == 1


@pytest.mark.case("mpi-v2beta1-19", "abc")
def test_complete_before_running_was_seen():
    world = world_of(1)
    moment = "2025-06-01T12:34:56Z"
    world.end_launcher(status={"completionTime": moment})
    world.settle()
    assert world.status["completionTime"] == moment
    assert world.conditions == [
        ("Created", "True", "MPIJobCreated"),
        ("Running", "False", "MPIJobRunning"),
        ("Succeeded", "True", "MPIJobSucceeded"),
    ]
    ran = world.condition("Running")
    assert ran["message"] == "MPIJob bar/foo is finished but Running condition was never set."
    assert ran["lastUpdateTime"] == ran["lastTransitionTime"] == moment
    assert world.condition("Succeeded")["message"] == "MPIJob bar/foo successfully completed."
    assert world.status["replicaStatuses"] == {"Launcher": {"succeeded": 1}, "Worker": {}}
    assert world.living() == ["foo-worker-0"]
    assert world.counts["successful"] == 1


@pytest.mark.case("mpi-v2beta1-20", "ab")
def test_complete_while_the_launchers_pod_runs():
    world = running()
    since = world.condition("Running")["lastTransitionTime"]
    world.pass_time(60)
    world.end_launcher()
    world.settle()
    assert world.condition("Running")["status"] == "False"
    assert world.condition("Running")["lastTransitionTime"] == since
    assert len(world.event_messages("MPIJobRunning")) == len(world.event_messages("MPIJobSucceeded")) == 1
    assert world.status["completionTime"]


def test_complete_after_a_failed_attempt():
    world = running(2)
    world.end_launcher(status={"failed": 1})
    world.settle()
    assert world.status["replicaStatuses"]["Launcher"] == {"succeeded": 1, "failed": 1}


@pytest.mark.case("mpi-v2beta1-21", "ab")
def test_failed_at_the_back_off_limit():
    world = world_of(1)
    world.launch("foo-launcher-1", "Failed", reason="FailedReason1", message="first message")
    world.pass_time(10)
    world.launch("foo-launcher-2", "Failed", reason="FailedReason2", message="second message")
    text = "Job has reached the specified backoff limit"
    world.end_launcher("Failed", reason="BackoffLimitExceeded", message=text, status={"failed": 2})
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "BackoffLimitExceeded/FailedReason2")
    assert world.condition("Failed")["message"] == Upstream(f"{text}: second message")
    assert world.status["replicaStatuses"]["Launcher"] == {"failed": 2}
    assert world.status["completionTime"]


@pytest.mark.parametrize("phase", ["Failed", "Running"])
def test_failed_at_the_back_off_limit_by_an_exit_code(phase: str):
    """The kubelet sets reason and message of a pod that it evicts, and not of one whose program fails."""
    world = world_of(1)
    end = {"exitCode": 3, "reason": "Error", "message": "no hosts"}
    state = {"name": MAIN, "restartCount": 2, "state": {"terminated": end}}
    world.launch("foo-launcher-1", phase, containerStatuses=[state])
    text = "Job has reached the specified backoff limit"
    world.end_launcher("Failed", reason="BackoffLimitExceeded", message=text, status={"failed": 1})
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "BackoffLimitExceeded/Error")
    said = Upstream(f"{text}: container {MAIN} of foo-launcher-1 exited with code 3")
    assert world.condition("Failed")["message"] == said
    assert "Last output: no hosts" in world.condition("Failed")["message"]
    assert world.event_messages("BackoffLimitExceeded/Error") == [said]


def test_failed_at_the_back_off_limit_without_any_pod():
    world = world_of(1)
    world.end_launcher("Failed", reason="BackoffLimitExceeded", message="limit", status={"failed": 1})
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "BackoffLimitExceeded")
    assert world.condition("Failed")["message"] == Upstream("limit")


def test_the_message_of_a_pod_is_bounded():
    long = Pod(status=msgspec.convert({"message": "x" * 5000}, PodStatus)).status.message
    assert len(long) <= MAX_STATUS_MESSAGE_LENGTH


@pytest.mark.case("mpi-v2beta1-22", "a")
def test_failed_without_a_reason():
    world = world_of(1)
    world.end_launcher("Failed")
    made = world.step()
    assert world.conditions[-1] == ("Failed", "True", "MPIJobFailed")
    assert world.condition("Failed")["message"] == Upstream("MPIJob bar/foo has failed")
    (event,) = (each for each in world.events if each.reason == "MPIJobFailed")
    assert event.type == "Warning"
    assert made.status_first
    assert world.counts["failed"] == 1


@pytest.mark.case("mpi-v2beta1-23", "a")
def test_a_failed_pod_of_the_launcher_alone():
    world = world_of(1)
    world.launch(phase="Failed")
    world.launcher["status"] = {"failed": 1}
    world.settle()
    assert world.status["replicaStatuses"] == {"Launcher": {"failed": 1}, "Worker": {}}
    assert [type_ for type_, _, _ in world.conditions] == ["Created"]
    assert world.living() == ["foo-launcher-x", "foo-worker-0"]


@pytest.mark.case("mpi-v2beta1-24", "abc")
def test_clean_up():
    phases = ["Running", "Pending", "Succeeded", "Failed"]
    for policy, left in (("All", []), ("Running", ["foo-worker-2", "foo-worker-3"])):
        world = world_of(4, run={"cleanPodPolicy": policy})
        world.launch()
        for index, phase in enumerate(phases):
            world.set_pod(f"foo-worker-{index}", phase)
        world.end_launcher()
        world.settle()
        assert world.living() == ["foo-launcher-x", *left]
        assert world.status["replicaStatuses"]["Worker"] == {}
        assert world.has_launcher()


def test_the_pods_of_the_launcher_are_deleted_on_request():
    world = running(annotations={CLEAN_LAUNCHER: "true"})
    world.end_launcher()
    world.settle()
    assert world.living() == ["foo-worker-0", "foo-worker-1"]


# Suspension -----------------------------------------------------------------------------------------------------------


@pytest.mark.case("mpi-v2beta1-25", "ab")
def test_created_suspended():
    world = world_of(8, run={"suspend": True})
    assert world.made == ["Service foo", "ConfigMap foo-config", "Secret foo-ssh", "Job foo-launcher"]
    assert world.launcher["spec"]["suspend"] is True
    assert world.conditions == [
        ("Created", "True", "MPIJobCreated"),
        ("Suspended", "True", "MPIJobSuspended"),
        ("Running", "False", "MPIJobSuspended"),
    ]
    assert world.condition("Running")["message"] == "MPIJob bar/foo is suspended."
    assert world.condition("Suspended")["message"] == "MPIJob suspended"
    assert world.event_messages("MPIJobSuspended") == ["MPIJob suspended"]
    assert "startTime" not in world.status


@pytest.mark.case("mpi-v2beta1-26", "abc")
def test_suspended_while_running():
    world = running(8, run={"cleanPodPolicy": "Running"})
    world.set_pod("foo-worker-3", "Failed")
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 7
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    assert world.patches == [{"spec": {"suspend": True}}]
    assert world.living() == ["foo-launcher-x"]
    assert world.status["replicaStatuses"]["Worker"] == {}
    assert world.is_true("Suspended")
    assert not world.is_true("Running")
    assert "startTime" not in world.status


def test_a_job_that_mpi_operator_has_suspended_is_not_written():
    world = running()
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    world.status["startTime"] = "2026-01-01T00:00:00Z"
    assert world.step().status is None


@pytest.mark.case("mpi-v2beta1-27", "abc")
def test_resumed_before_the_launcher_started():
    world = world_of(8, run={"suspend": True})
    world.pass_time(60)
    template = world.spec["mpiReplicaSpecs"]["Launcher"]["template"]
    template["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    scheduling = {
        "nodeSelector": {"pool": "x"},
        "tolerations": [{"key": "k"}],
        "schedulingGates": [{"name": "g"}],
        "affinity": {"nodeAffinity": {}},
    }
    template["spec"] |= scheduling
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    assert len(world.living()) == 8
    (patch,) = world.patches
    assert patch["spec"]["suspend"] is False
    assert patch["spec"]["template"]["spec"] == scheduling
    labels = world.launcher["spec"]["template"]["metadata"]["labels"]
    assert labels["a"] == "b"
    assert labels[f"{L}job-name"] == "foo"
    assert world.launcher["spec"]["template"]["metadata"]["annotations"] == {"c": "d"}
    assert world.conditions[-1] == ("Suspended", "False", "MPIJobResumed")
    assert world.event_messages("MPIJobResumed") == ["MPIJob resumed"]
    assert world.status["startTime"] == "2025-06-01T12:01:00Z"


@pytest.mark.case("mpi-v2beta1-28", "abc")
def test_resumed_after_the_launcher_had_started():
    world = running(1)
    world.launcher["status"] = {"startTime": "2025-06-01T12:00:00Z"}
    labels = {"foo": "bar", "gone": "yes"}
    for value in ("bar", "baz"):
        world.spec["runPolicy"] = {"suspend": True}
        world.settle()
        world.pods.clear()
        labels["foo"] = value
        metadata = {"labels": dict(labels)}
        world.spec["mpiReplicaSpecs"]["Launcher"]["template"] = replicas(1)["template"] | {"metadata": metadata}
        world.patches.clear()
        world.spec["runPolicy"] = {"suspend": False}
        world.launcher["status"] = {"startTime": "2025-06-01T12:00:00Z"}
        world.settle()
        assert world.patches[0] == {"status": {"startTime": None}}
        assert [each["spec"]["suspend"] for each in world.patches[1:]] == [False]
        assert world.launcher["status"] == {}
        labels.pop("gone", None)
    found = world.launcher["spec"]["template"]["metadata"]["labels"]
    assert (found["foo"], found["gone"]) == ("baz", "yes")


def test_scheduling_fields_are_replaced():
    pool = {"nodeSelector": {"pool": "x", "zone": "a"}}
    world = world_of(1, launcher=replicas(1, template=pool), run={"suspend": True})
    template = world.spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    template["nodeSelector"] = {"pool": "y"}
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    assert world.launcher["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "y"}


def test_other_changes_of_the_template_need_a_new_launcher():
    world = world_of(1, run={"suspend": True})
    world.spec["mpiReplicaSpecs"]["Launcher"] = replicas(1, image="other")
    world.spec["runPolicy"]["suspend"] = False
    made = world.step()
    assert [action.name for action in made.actions if isinstance(action, Remove)] == ["foo-launcher"]
    world.settle()
    assert world.launcher["spec"]["template"]["spec"]["containers"][0]["image"] == "other"
    world.launcher["status"] = {"startTime": "2025-06-01T12:00:00Z"}
    world.spec["runPolicy"]["suspend"] = True
    world.settle()
    world.spec["mpiReplicaSpecs"]["Launcher"] = replicas(1, image="third")
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    assert world.launcher["spec"]["template"]["spec"]["containers"][0]["image"] == "other"
    assert len(world.event_messages("LauncherTemplateChanged")) == 1


# Waiting, scaling -----------------------------------------------------------------------------------------------------


@pytest.mark.case("mpi-v2beta1-30", "abc")
def test_the_launcher_waits_for_ready_workers():
    policy: Json = {"launcherCreationPolicy": "WaitForWorkersReady"}
    world = world_of(2, **policy)
    world.run_workers(ready=False)
    world.settle()
    assert not world.has_launcher()
    assert world.status["replicaStatuses"] == {"Worker": {"active": 2}}
    world.run_workers()
    made = world.step()
    assert world.has_launcher()
    assert world.config["discover_hosts.sh"].count("echo") == 2
    assert [action.how for action in made.actions if isinstance(action, Ensure)] == [How.FILL, How.FILL]
    resumed = world_of(2, run={"suspend": True}, **policy)
    resumed.spec["runPolicy"]["suspend"] = False
    resumed.settle()
    resumed.run_workers(ready=False)
    resumed.settle()
    assert resumed.launcher["spec"]["suspend"] is True
    resumed.run_workers()
    resumed.settle()
    assert resumed.launcher["spec"]["suspend"] is False


@pytest.mark.case("mpi-v2beta1-31", "abc")
def test_scaling():
    world = running(2)
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 4
    world.settle()
    assert len(world.living()) == 5
    assert world.config["hostfile"].count("\n") == 4
    assert world.config["discover_hosts.sh"].count("echo") == 2
    world.run_workers()
    world.settle()
    assert world.config["discover_hosts.sh"].count("echo") == 4
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 2
    made = world.step()
    assert [a.name for a in made.actions if pod_deleted(a)] == ["foo-worker-2", "foo-worker-3"]
    assert applied(made.actions[0])
    assert world.config["hostfile"].count("\n") == 2
    assert world.config["discover_hosts.sh"].count("echo") == 2


@pytest.mark.case("mpi-v2beta1-31", "d")
def test_scaling_down_with_the_launcher_as_worker():
    """The label of worker i is i+1: upstream deletes worker 2, too."""
    world = running(4, runLauncherAsWorker=True)
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 3
    made = world.step()
    assert [a.name for a in made.actions if pod_deleted(a)] == ["foo-worker-3"]


@pytest.mark.case("mpi-v2beta1-32", "a")
def test_a_deleted_worker_returns():
    world = running()
    before = world.pods["foo-worker-1"]["metadata"]["labels"]
    world.delete("foo-worker-1")
    world.settle()
    assert "foo-worker-1" not in world.living()
    world.reap()
    world.settle()
    assert world.pods["foo-worker-1"]["metadata"]["labels"] == before


@pytest.mark.case("mpi-v2beta1-33", "ab")
def test_an_evicted_worker():
    world = running(8, run={"cleanPodPolicy": "All"})
    world.set_pod("foo-worker-3", "Failed", reason="Evicted")
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "MPIJobEvicted")
    assert world.condition("Failed")["message"] == Upstream("1/8 workers are evicted")
    assert not world.is_true("Running")
    assert world.status["completionTime"]
    assert world.living() == ["foo-launcher-x"]
    assert world.launcher["spec"]["suspend"] is True
    assert world.status["replicaStatuses"]["Launcher"] == {}
    world.end_launcher()
    world.settle()
    assert world.conditions[-1] == ("Failed", "True", "MPIJobEvicted")


def test_a_job_that_mpi_operator_failed_without_a_time_of_completion():
    world = running()
    condition = {"type": "Failed", "status": "True", "reason": "MPIJobEvicted", "message": ""}
    world.status["conditions"].append(condition)
    world.settle()
    assert world.status["completionTime"]


@pytest.mark.case("mpi-v2beta1-34", "ab")
def test_managed_by():
    other = MpiWorld(mpi_job(run={"managedBy": "kueue.x-k8s.io/multikueue"}, transport=None))
    for suspend in (False, True, False):
        other.spec["runPolicy"]["suspend"] = suspend
        other.settle()
    assert (other.made, other.status) == ([], {})
    for manager in ("kubeflow.org/mpi-operator", "kubeflow.org/training-operator", ""):
        assert "Job foo-launcher" in world_of(run={"managedBy": manager}).made


# Robustness -----------------------------------------------------------------------------------------------------------


def test_a_deleted_launcher_is_made_again_when_its_pod_has_ended():
    world = running()
    world.companions[world.jobs].clear()
    world.settle()
    assert world.made.count("Job foo-launcher") == 1
    world.set_pod("foo-launcher-x", "Failed")
    world.settle()
    assert world.made.count("Job foo-launcher") == 2


def test_a_resumed_launcher_waits_for_the_pod_of_a_deleted_one():
    world = running()
    world.companions[world.jobs].clear()
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    assert world.launcher["spec"]["suspend"] is True
    del world.pods["foo-launcher-x"]
    world.settle()
    assert world.launcher["spec"]["suspend"] is False


def test_a_terminating_launcher_is_left():
    world = running()
    world.launcher["metadata"]["deletionTimestamp"] = "2025-06-01T12:00:00Z"
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.patches == []


def test_the_launcher_of_mpi_operator_gets_our_labels():
    world = running()
    world.launcher["metadata"]["labels"] = {"app": "foo"}
    world.settle()
    assert world.launcher["metadata"]["labels"][f"{L}job-name"] == "foo"
    assert world.made.count("Job foo-launcher") == 1


def test_a_job_whose_manifest_is_refused_fails():
    world = world_of(0)
    world.carry_out(world.kind.reject(world.snapshot(), "no"))
    assert world.conditions[-1] == ("Failed", "True", "MPIJobFailed")
    assert world.condition("Failed")["message"] == "no"
    assert world.kind.reject(world.snapshot(), "no").status is None
    world.raw["spec"] = None
    assert world.kind.reject(world.snapshot(), "no").status is None


def test_nothing_is_done_for_a_job_that_is_being_deleted():
    world = world_of()
    world.raw["metadata"]["deletionTimestamp"] = "2025-06-01T12:00:00Z"
    world.pods.clear()
    made = world.step()
    assert (made.actions, made.status) == ((), None)


def test_a_thousand_workers():
    world = MpiWorld(mpi_job(1000))
    snapshot = world.snapshot()
    made = world.kind.plan(snapshot)
    assert sum(pod_created(action) for action in made.actions) == 500
    world.settle()
    assert world.made.count("ConfigMap foo-config") == 1
    assert world.made[-1] == "Job foo-launcher"
    world.launch()
    writes = 0
    for index in range(1000):
        world.run(f"foo-worker-{index}")
        if index % 100 == 99:
            made = world.step()
            writes += sum(applied(action) or isinstance(action, Patch) for action in made.actions)
    assert writes == 1
    assert world.is_true("Running")


# Root cause -----------------------------------------------------------------------------------------------------------


def failed_status(code: int, second: int, message: str = "") -> Json:
    end = {"exitCode": code, "reason": "Error", "message": message, "finishedAt": stamp(second), "startedAt": stamp(-9)}
    return {"containerStatuses": [{"name": MAIN, "state": {"terminated": end}}]}


def test_a_worker_that_failed_before_the_launcher_is_the_root_cause():
    world = running(2)
    world.set_pod("foo-worker-1", "Failed", **failed_status(137, 1))
    world.set_pod("foo-launcher-x", "Failed", **failed_status(1, 3, "mpirun: lost connection"))
    world.end_launcher("Failed", reason="BackoffLimitExceeded", message="limit", status={"failed": 1})
    world.settle()
    found = world.status["lastFailure"]
    assert (found["role"], found["index"], found["signal"], found["failedAfter"]) == ("Worker", 1, "SIGKILL", 1)
    assert "First failure: Worker 1 (pod foo-worker-1) was ended by SIGKILL" in world.condition("Failed")["message"]
    (event,) = (each for each in world.events if each.type == "Warning")
    assert event.message == world.condition("Failed")["message"]


def test_the_latest_attempt_of_the_launcher_is_the_root_cause():
    world = running(1)
    world.set_pod("foo-launcher-x", "Failed", **failed_status(1, 1))
    world.pass_time(10)
    world.launch("foo-launcher-y", "Failed", **failed_status(7, 12, "no hosts"))
    world.end_launcher("Failed", reason="BackoffLimitExceeded", message="limit", status={"failed": 2})
    world.settle()
    found = world.status["lastFailure"]
    assert (found["role"], found["pod"], found["exitCode"], found["attempt"]) == ("Launcher", "foo-launcher-y", 7, 2)
    assert found["log"] == ["no hosts"]


def test_the_root_cause_outlives_the_pods_of_a_launcher_that_is_restarted_in_place():
    world = running(1)
    status = failed_status(7, 1, "no hosts")["containerStatuses"][0]
    looping = {"name": MAIN, "restartCount": 1, "state": {"waiting": {}}, "lastState": status["state"]}
    world.set_pod("foo-launcher-x", "Running", containerStatuses=[looping])
    before = world.status
    world.settle()
    assert world.status == before, "a restart in place alone is not written"
    stopped = {**looping, "state": {"terminated": {"exitCode": 143, "finishedAt": stamp(9)}}}
    world.delete("foo-launcher-x")
    world.set_pod("foo-launcher-x", "Failed", containerStatuses=[stopped])
    world.settle()
    world.reap()
    world.end_launcher("Failed", reason="BackoffLimitExceeded", message="limit")
    world.settle()
    found = world.status["lastFailure"]
    assert (found["exitCode"], found["log"], found["attempt"]) == (7, ["no hosts"], 1)


def test_a_launcher_at_its_deadline_has_not_failed():
    world = running(2)
    world.delete("foo-launcher-x")
    world.set_pod("foo-launcher-x", "Failed", **failed_status(143, 40))
    world.end_launcher("Failed", reason="DeadlineExceeded", message="Job was active longer than specified deadline")
    world.settle()
    assert world.status["lastFailure"] == {"reason": "DeadlineExceeded", "message": "2 of 2 workers were running"}


def test_the_first_evicted_worker_is_the_root_cause():
    world = running(3)
    for index, second in ((2, 5), (1, 3)):
        at = {"type": "DisruptionTarget", "status": "True", "reason": "x", "lastTransitionTime": stamp(second)}
        world.set_pod(f"foo-worker-{index}", "Failed", reason="Evicted", message="low on memory", conditions=[at])
    world.settle()
    found = world.status["lastFailure"]
    assert (found["index"], found["reason"], found["message"], found["failedAfter"]) == (
        1,
        "Evicted",
        "low on memory",
        1,
    )


KEPT = KEEPS_LOG["terminationMessagePolicy"]


def policies_of(spec: Json) -> set[str | None]:
    return {each.get("terminationMessagePolicy") for each in (*spec["containers"], *spec.get("initContainers", ()))}


@pytest.mark.parametrize("policy", ["FallbackToLogsOnError", "File"])
def test_containers_leave_the_end_of_their_log(policy: str):
    world = world_of(1, worker=replicas(1, template={"initContainers": [{"name": "init"}]}),
                     options=Options(termination_message_policy=policy))  # fmt: skip
    expected = {None if policy == "File" else policy}
    assert policies_of(world.pods["foo-worker-0"]["spec"]) == expected
    assert policies_of(world.launcher["spec"]["template"]["spec"]) == expected


@pytest.mark.parametrize(("before", "after"), [("File", KEPT), (KEPT, KEPT), (KEPT, "File")])
def test_a_suspended_launcher_of_another_policy_is_not_made_anew(before: str, after: str):
    """That of an older operator lacks the policy, which the API server has set to File."""
    world = world_of(1, run={"suspend": True}, options=Options(termination_message_policy=before))
    uid = world.launcher["metadata"]["uid"]
    world.options = Options(termination_message_policy=after)
    world.spec["runPolicy"]["suspend"] = False
    world.settle()
    world.run_workers()
    world.settle()
    assert world.launcher["metadata"]["uid"] == uid
    assert world.launcher["spec"]["suspend"] is False
    assert world.event_messages("LauncherTemplateChanged") == []
