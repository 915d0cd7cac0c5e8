"""MPIJob with transport ssh: launchers that expire or are deleted, failed workers, and lost keys."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas, running, world_of
from trainop.engine.actions import DeleteJob, Patch, Remove
from trainop.engine.seen import Options
from trainop.kinds.mpi.kinds import launcher_of
from trainop.kinds.mpi.ssh.annotations import OPEN_MPI_VERSION, REPLACE_FAILED
from trainop.kinds.mpi.ssh.finish import FINISH, release
from trainop.kinds.mpi.ssh.job import parse_ssh
from trainop.kinds.mpi.ssh.keys import are_usable, make_keys
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.runtime.objects.metadata import Json, Unstructured

EXPIRING = {"ttlSecondsAfterFinished": 60}
DELETED = "2025-06-01T12:00:00Z"


def finalizers(world: MpiWorld) -> list[str]:
    found: list[str] = world.launcher["metadata"].get("finalizers") or []
    return found


# The finalizer of the launcher's Job ----------------------------------------------------------------------------------


def test_only_a_launcher_that_expires_has_the_finalizer():
    assert finalizers(world_of(1, run=EXPIRING)) == [FINISH]
    assert "finalizers" not in world_of(1).launcher["metadata"]


@pytest.mark.parametrize("type_", ["Complete", "Failed"])
def test_the_end_is_recorded_before_the_finalizer_is_removed(type_: str):
    world = running(1, run=EXPIRING)
    world.launcher["metadata"] |= {"deletionTimestamp": DELETED, "resourceVersion": "7"}
    world.launcher["metadata"]["finalizers"] = ["foregroundDeletion", FINISH]
    world.end_launcher(type_)
    made = world.step()
    assert made.status_first
    assert made.status is not None
    assert made.status["completionTime"]
    (patch,) = (action for action in made.actions if isinstance(action, Patch))
    assert patch.body == {"metadata": {"finalizers": ["foregroundDeletion"], "resourceVersion": "7"}}
    world.companions[LAUNCHER_JOBS].clear()
    made = world.step()
    assert (made.actions, made.status) == ((), None)
    assert not world.has_launcher()


def test_a_launcher_that_is_deleted_before_its_end_is_released_and_created_again():
    world = running(1, run=EXPIRING)
    world.launcher["metadata"]["deletionTimestamp"] = DELETED
    made = world.step()
    assert made.status is None
    assert finalizers(world) == []
    assert not world.is_true("Failed")
    world.companions[LAUNCHER_JOBS].clear()
    del world.pods["foo-launcher-x"]
    world.settle()
    assert world.made.count("Job foo-launcher") == 2
    assert finalizers(world) == [FINISH]


@pytest.mark.parametrize("ended", [False, True])
def test_the_finalizer_never_blocks_the_deletion_of_the_job(ended: bool):
    world = running(1, run=EXPIRING)
    if ended:
        world.end_launcher()
    world.raw["metadata"]["deletionTimestamp"] = DELETED
    made = world.step()
    assert [type(action) for action in made.actions] == [Patch]
    assert finalizers(world) == []
    assert made.status is None


def test_a_launcher_without_its_job_is_released():
    world = running(1, run=EXPIRING)
    kind = world.kind
    patch = kind.release(Unstructured(world.launcher))
    assert patch is not None
    assert patch.body["metadata"]["finalizers"] == []
    assert release(Unstructured({"metadata": {"name": "other"}})) is None


@pytest.mark.parametrize("orphan", [False, True])
def test_the_launcher_of_a_previous_job_is_released(orphan: bool):
    world = running(1, run=EXPIRING)
    if orphan:
        del world.launcher["metadata"]["ownerReferences"]
    else:
        world.launcher["metadata"]["ownerReferences"][0]["uid"] = "former"
    world.settle()
    assert finalizers(world) == []


def test_the_launcher_of_another_job_keeps_its_finalizer():
    world = running(1, run=EXPIRING)
    world.launcher["metadata"]["ownerReferences"][0] |= {"uid": "theirs", "name": "other"}
    world.settle()
    assert finalizers(world) == [FINISH]


def test_a_job_that_goes_to_another_controller_releases_its_launcher():
    world = running(1, run=EXPIRING)
    world.spec["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    world.step()
    assert finalizers(world) == []


def test_an_eviction_suspends_and_releases_the_launcher_in_one_write():
    world = running(2, run=EXPIRING)
    world.set_pod("foo-worker-1", "Failed", reason="Evicted")
    made = world.step()
    (patch,) = (action for action in made.actions if isinstance(action, Patch))
    assert patch.body["spec"] == {"suspend": True}
    assert finalizers(world) == []


def test_a_job_that_can_no_longer_be_read_releases_a_launcher_that_is_deleted():
    world = running(1, run=EXPIRING)
    world.spec["mpiReplicaSpecs"] = None
    world.step()
    assert finalizers(world) == [FINISH]
    world.launcher["metadata"]["deletionTimestamp"] = DELETED
    world.step()
    assert finalizers(world) == []


def test_the_launcher_of_mpi_operator_gets_the_finalizer_with_its_labels():
    world = running(1, run=EXPIRING)
    metadata = world.launcher["metadata"]
    metadata["labels"], metadata["finalizers"] = {"app": "foo"}, ["theirs"]
    world.settle()
    assert finalizers(world) == ["theirs", FINISH]
    assert len(world.patches) == 1
    world.launcher["metadata"]["finalizers"] = []
    world.settle()
    assert finalizers(world) == []  # somebody has removed it on purpose


def test_a_launcher_that_is_replaced_is_released_first():
    world = world_of(1, run={"suspend": True, **EXPIRING})
    world.spec["mpiReplicaSpecs"]["Launcher"] = replicas(1, image="other")
    world.spec["runPolicy"]["suspend"] = False
    made = world.step()
    assert [type(action) for action in made.actions if isinstance(action, Patch | Remove)] == [Patch, Remove]


def test_a_finished_job_is_deleted_only_on_request():
    assert not any(isinstance(action, DeleteJob) for action in _at_end(Options()))
    (last,) = _at_end(Options(mpi_job_ttl=True))
    assert isinstance(last, DeleteJob)


def _at_end(options: Options) -> tuple[object, ...]:
    world = world_of(1, run=EXPIRING, options=options)
    world.end_launcher()
    world.settle()
    world.companions[LAUNCHER_JOBS].clear()
    world.pass_time(59)
    made = world.kind.plan(world.snapshot())
    assert made.actions == ()
    if options.mpi_job_ttl:
        assert made.requeue_after == pytest.approx(1)
    world.pass_time(1)
    return world.kind.plan(world.snapshot()).actions


# Failed workers -------------------------------------------------------------------------------------------------------


def replacing(workers: int, **fields: Any) -> MpiWorld:
    return running(workers, annotations={REPLACE_FAILED: "true"}, **fields)


@pytest.mark.parametrize("reason", ["", "Evicted"])
def test_a_failed_worker_is_replaced_on_request(reason: str):
    world = replacing(3)
    world.pass_time(60)
    world.set_pod("foo-worker-1", "Failed", reason=reason)
    world.settle()
    assert "foo-worker-1" not in world.living()
    assert world.event_messages("WorkersReplaced") == ["Replacing failed workers: foo-worker-1"]
    assert not world.is_true("Failed")
    world.reap()
    world.settle()
    assert world.pods["foo-worker-1"]["status"]["phase"] == "Pending"
    assert world.made.count("Secret foo-ssh") == 1


def test_a_failed_worker_stays_by_default():
    world = running(2)
    world.pass_time(60)
    world.set_pod("foo-worker-1", "Failed")
    world.settle()
    assert "foo-worker-1" in world.living()
    assert world.status["replicaStatuses"]["Worker"] == {"active": 1, "failed": 1}


def test_a_worker_that_fails_at_once_is_not_replaced_in_a_hot_loop():
    world = replacing(1)
    world.set_pod("foo-worker-0", "Failed")
    made = world.step()
    assert "foo-worker-0" in world.living()
    assert made.requeue_after == pytest.approx(10)
    world.pass_time(10)
    world.settle()
    assert "foo-worker-0" not in world.living()


def test_one_event_speaks_for_many_workers():
    world = replacing(40)
    world.pass_time(60)
    for index in range(40):
        world.set_pod(f"foo-worker-{index}", "Failed")
    world.settle()
    (text,) = world.event_messages("WorkersReplaced")
    assert text.endswith("foo-worker-9 and 30 more")


def test_workers_are_not_replaced_after_the_end():
    world = replacing(1)
    world.pass_time(60)
    world.set_pod("foo-worker-0", "Failed")
    world.end_launcher("Failed")
    world.settle()
    assert "foo-worker-0" in world.living()


@pytest.mark.parametrize("name", [REPLACE_FAILED, OPEN_MPI_VERSION])
def test_annotations_are_validated(name: str):
    job = mpi_job(1, annotations={name: "maybe"})
    (error,) = (str(each) for each in parse_ssh(Unstructured(job), Options())[1])
    assert error.startswith(f"metadata.annotations[{name}]: Unsupported value")


@pytest.mark.parametrize("least", [0, -1, "2"])
def test_a_gang_has_a_member(least: object):
    job = mpi_job(1, run={"schedulingPolicy": {"minAvailable": least}})
    (error,) = (str(each) for each in parse_ssh(Unstructured(job), Options())[1])
    assert error.startswith("spec.runPolicy.schedulingPolicy.minAvailable: Invalid value")


# Keys -----------------------------------------------------------------------------------------------------------------


def test_a_lost_key_is_replaced_when_a_worker_is_created_beside_running_ones():
    world = running(2)
    world.secret = {}
    world.delete("foo-worker-1")
    world.reap()
    world.step()
    assert are_usable(world.secret)
    assert world.living() == ["foo-launcher-x", "foo-worker-0", "foo-worker-1"]


def test_a_lost_key_is_replaced_while_one_worker_runs_and_another_cannot_start():
    world = world_of(2)
    world.set_pod("foo-worker-0", "Running")
    world.secret = {}
    world.step()
    assert world.secret == {}
    world.pass_time(30)
    world.step()
    assert are_usable(world.secret)


def test_a_lost_key_is_replaced_for_a_launcher_that_cannot_start():
    world = world_of(1)
    world.run_workers()
    world.launch(phase="Pending")
    world.secret = {}
    world.pass_time(30)
    world.step()
    assert are_usable(world.secret)


def test_a_pod_without_a_node_does_not_need_the_key_yet():
    world = world_of(1)
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    world.set_pod("foo-worker-0", "Pending", conditions=[unscheduled])
    world.secret = {}
    world.pass_time(3600)
    world.step()
    assert world.secret == {}


def test_a_lost_key_stays_away_while_all_pods_run():
    world = running(2)
    world.secret = {}
    world.pass_time(3600)
    world.settle()
    assert world.secret == {}


def test_pending_workers_get_a_new_key():
    world = world_of(2)
    world.secret = {}
    made = world.step()
    assert world.secret == {}
    assert made.requeue_after == pytest.approx(30)
    world.pass_time(30)
    made = world.step()
    assert are_usable(world.secret)
    assert made.requeue_after == pytest.approx(30)
    world.pass_time(30)
    made = world.step()
    assert made.requeue_after == pytest.approx(60)  # twice as long each time


def test_an_unreadable_key_is_made_anew_before_workers_use_it():
    world = MpiWorld(mpi_job(1))
    world.secret = {"data": {"ssh-privatekey": "a2V5", "ssh-publickey": "a2V5"}}
    world.step()
    assert are_usable(world.secret)


def _secret(private: bytes, public: bytes) -> Json:
    keys = {"ssh-privatekey": private, "ssh-publickey": public}
    return {"data": {name: base64.b64encode(value).decode() for name, value in keys.items()}}


def test_keys_of_other_types_are_kept():
    for key in (ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)):
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        assert are_usable(_secret(private, public))
        assert are_usable(_secret(private, b'# ours\nfrom="10.0.0.0/8",no-pty ' + public + b" me@host\n"))


def test_keys_that_ssh_cannot_use():
    good = make_keys()
    assert are_usable(good)
    encoded = good["data"]
    private, public = (base64.b64decode(encoded[name]) for name in ("ssh-privatekey", "ssh-publickey"))
    assert not are_usable(_secret(private[:-60], public))
    assert not are_usable(_secret(b"", public))
    assert not are_usable(_secret(private, b""))
    assert not are_usable(_secret(private, b"\n"))
    assert not are_usable(_secret(private + b"x" * 9000, public))
    assert not are_usable(_secret(private, b"ssh-" * 200_000))  # soon: it may be as large as a Secret
    wrong: list[Any] = [None, {}, [], "x", {"ssh-privatekey": encoded["ssh-privatekey"]}]
    for data in (*wrong, encoded | {"ssh-publickey": 1}):
        assert not are_usable({"data": data})
    assert not are_usable({})


def test_a_group_that_may_read_the_key():
    group = {"securityContext": {"fsGroup": 1000}}
    warned = world_of(1, launcher=replicas(1, template=group))
    assert len(warned.event_messages("SSHKeyRefused")) == 1
    for job in (
        {"launcher": replicas(1, template=group), "sshAuthMountPath": "/home/u/.ssh"},
        {"launcher": replicas(1, template={"securityContext": {}})},
    ):
        assert world_of(1, **job).event_messages("SSHKeyRefused") == []


# Open MPI 5 and metrics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "variable"),
    [("ssh", "PRTE_MCA_plm_ssh_args=-o ConnectionAttempts=10"), ("rsh", "PRTE_MCA_plm_ssh_agent=rsh")],
)
def test_variables_of_open_mpi_5(shell: str, variable: str):
    annotations = {OPEN_MPI_VERSION: "5", "trainop.kubeflow.org/mpi-remote-shell": shell}
    worker = replicas(1, command=["server"])
    world = world_of(1, annotations=annotations, worker=worker, slotsPerWorker=3)
    (container,) = world.launcher["spec"]["template"]["spec"]["containers"]
    given = [f"{each['name']}={each['value']}" for each in container["env"]]
    assert [each for each in given if each.startswith("PRTE_")] == [
        "PRTE_MCA_prte_keep_fqdn_hostnames=true",
        "PRTE_MCA_prte_default_hostfile=/etc/mpi/hostfile",
        variable,
        "PRTE_MCA_prte_set_default_slots=3",
    ]
    assert "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile" in given


def test_launchers_for_metrics():
    world = world_of(1)
    assert launcher_of(Unstructured(world.raw)) == "foo-launcher"
    for raw in (mpi_job(1), mpi_job(1, transport="exec"), {**mpi_job(1), "status": {"replicaStatuses": []}}):
        assert launcher_of(Unstructured(raw)) == ""


# A lost node ----------------------------------------------------------------------------------------------------------


def dying(seconds: float = 0.0, phase: str = "Running", **fields: Any) -> MpiWorld:
    """The launcher's pod is being deleted, and its grace period has ended so many seconds ago."""
    world = running(1, **fields)
    ends = (world.now - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    world.pods["foo-launcher-x"]["metadata"]["deletionTimestamp"] = ends
    world.set_pod("foo-launcher-x", phase)
    return world


def policy_of(world: MpiWorld) -> str:
    policy: str = world.launcher["spec"]["podReplacementPolicy"]
    return policy


def test_a_launcher_that_never_ends_is_replaced():
    """Its node is gone: no kubelet reports the end of the pod."""
    world = dying()
    made = world.step()
    assert policy_of(world) == "Failed"
    assert made.requeue_after == pytest.approx(30)
    world.pass_time(29)
    world.settle()
    assert policy_of(world) == "Failed"
    world.pass_time(1)
    world.settle()
    assert policy_of(world) == "TerminatingOrFailed"
    assert world.step().actions == ()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_launcher_that_has_ended_is_not_lost(phase: str):
    world = dying(100, phase)
    world.settle()
    assert policy_of(world) == "Failed"


def test_a_suspended_launcher_is_not_replaced():
    world = dying(100)
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert policy_of(world) == "Failed"


def test_a_job_of_mpi_operator_is_left_as_it_is():
    world = dying(100)
    del world.launcher["spec"]["podReplacementPolicy"]
    world.settle()
    assert "podReplacementPolicy" not in world.launcher["spec"]
