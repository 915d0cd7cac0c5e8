"""The rights of the launcher's account with transport exec: only in pods that the job's UID controls, and only while it
does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.builders import applied, pod_created, pod_deleted
from tests.kinds.mpi_world import MpiWorld, mpi_job, replicas
from trainop.engine.actions import DeleteJob, Plan
from trainop.engine.status import RIGHTS_GRANTED
from trainop.engine.steps.rights import BINDING, ROLE, withdraw
from trainop.kinds.mpi.exec.kind import ACCOUNT, MOST_ASKED, WAIT
from trainop.runtime.objects.metadata import Json, Unstructured

ACCOUNT_NAME = "m-launcher"
VERBS = {("pods", "get"), ("pods/exec", "create")}
"""All that `kubectl exec` needs, each by the name of a pod."""


def world_of(workers: int = 2, *, settled: bool = True, **fields: Any) -> MpiWorld:
    world = MpiWorld(mpi_job(workers, name="m", transport="exec", **fields), ssh=False)
    if settled:
        world.settle()
    return world


def rules(world: MpiWorld) -> list[Json]:
    """The rules of the Roles that are bound to an account of the job."""
    roles = world.companions[ROLE.resource]
    bound = [each["roleRef"]["name"] for each in world.companions[BINDING.resource].values()]
    return [rule for name in bound for rule in roles[name]["rules"]]


def allowed(world: MpiWorld) -> set[str]:
    """The pods in which the account may do something; fails if it may do anything else."""
    found: set[str] = set()
    for rule in rules(world):
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                assert (resource, verb) in VERBS
        assert rule["resourceNames"], "no names would mean all pods"
        found |= set(rule["resourceNames"])
    return found


def controlled(world: MpiWorld) -> set[str]:
    """The workers that the job controls and that live."""
    uid = world.raw["metadata"]["uid"]
    return {
        name
        for name, pod in world.pods.items()
        if any(owner["uid"] == uid and owner["controller"] for owner in pod["metadata"].get("ownerReferences", ()))
        and "deletionTimestamp" not in pod["metadata"]
        and "-worker-" in name
    }


def plant(world: MpiWorld, name: str, **metadata: Any) -> None:
    """A pod of somebody else."""
    world._create(world.pods, {"metadata": {"name": name, "namespace": "bar", **metadata}}, {"status": {}})


def place_of_rights(made: Plan) -> int:
    """Where in the plan the Role is written."""
    (place,) = [n for n, each in enumerate(made.actions) if applied(each) and each.resource == ROLE.resource]
    return place


# Granted --------------------------------------------------------------------------------------------------------------


def test_rights_are_granted_when_all_workers_exist_and_not_before():
    world = world_of(settled=False)
    first = world.step()
    assert {"m-worker-0", "m-worker-1", "m-launcher"} <= {getattr(each, "name", "") for each in first.actions}
    assert not world.companions[ROLE.resource]
    assert not world.companions[BINDING.resource]
    world.step()
    assert list(world.companions[ROLE.resource]) == [ACCOUNT_NAME]
    assert not world.companions[BINDING.resource], "the Role may be another owner's, as long as it is not seen"
    world.step()
    assert allowed(world) == {"m-worker-0", "m-worker-1"}
    assert world.companions[BINDING.resource][ACCOUNT_NAME]["subjects"] == [
        {"kind": "ServiceAccount", "name": ACCOUNT_NAME, "namespace": "bar"}
    ]
    assert not world.step().actions


def test_rights_cost_no_more_writes_than_four_objects_and_one_withdrawal():
    world, writes = world_of(settled=False), 0
    for happen in (lambda: None, world.run, lambda: world.end("m-launcher", 0)):
        happen()
        for _ in range(10):
            writes += sum(applied(each) for each in world.step().actions)
    assert world.is_true("Succeeded")
    assert writes == len((ACCOUNT, "ConfigMap", ROLE, BINDING)) + len(("the running hosts", "the withdrawal"))


# Names of others ------------------------------------------------------------------------------------------------------


def taken_of(world: MpiWorld) -> str:
    found = [each for each in world.status["conditions"] if each["type"] == RIGHTS_GRANTED]
    assert all(each["status"] == "False" and each["reason"] == "NameTaken" for each in found)
    return str(found[0]["message"]) if found else ""


@pytest.mark.parametrize("labelled", [False, True], ids=["unlabelled", "with our labels"])
def test_the_pod_of_somebody_else_gives_no_right_and_is_named(labelled: bool):
    world = world_of(settled=False)
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "m", "uid": "p", "controller": True}
    ours = world_of().pods["m-worker-1"]["metadata"]["labels"] if labelled else {}
    pods, other = world.pods, {}
    plant(world, "m-worker-1", labels=ours, ownerReferences=[owner])
    if not labelled:  # the caches lack it, and the API server refuses the worker
        other["m-worker-1"] = pods.pop("m-worker-1")
    made = world.plan(world.snapshot())
    kept = [each for each in made.actions if getattr(each, "name", "") != "m-worker-1"]
    world.carry_out(Plan(status=made.status, notices=made.notices, actions=tuple(kept)))
    world.taken = frozenset() if labelled else frozenset({("Pod", "m-worker-1")})
    made = world.plan(world.snapshot())
    world.carry_out(Plan(status=made.status, notices=made.notices))
    assert "Pod" in taken_of(world)
    assert "m-worker-1" in taken_of(world)
    assert "m-worker-0" not in taken_of(world)
    assert not world.companions[ROLE.resource]
    world.pods.pop("m-worker-1", None)
    world.taken = frozenset()
    world.settle()
    assert taken_of(world) == ""
    assert allowed(world) == {"m-worker-0", "m-worker-1"}


def test_a_condition_stays_until_the_pods_exist():
    """A restarted operator does not know yet what has the name."""
    world = world_of()
    world.delete("m-worker-1")
    world.reap()
    world.taken = frozenset({("Pod", "m-worker-1")})
    made = world.plan(world.snapshot())
    world.carry_out(Plan(status=made.status))
    world.taken = frozenset()
    made = world.plan(world.snapshot())
    assert made.status is None
    assert taken_of(world)
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 1
    world.settle()
    assert not taken_of(world)


@pytest.mark.parametrize("kind", [ROLE, BINDING])
def test_no_rights_are_granted_beside_a_role_of_somebody_else(kind: Any):
    world = world_of(settled=False)
    foreign = {"metadata": {"name": ACCOUNT_NAME, "namespace": "bar", "uid": "theirs"}}
    world.companions[kind.resource][ACCOUNT_NAME] = foreign
    for _ in range(3):
        world.step()
    assert world.pods == {}
    assert world.companions[kind.resource] == {ACCOUNT_NAME: foreign}
    assert any(kind.resource.kind in each for each in world.event_messages("ErrResourceExists"))


# Withdrawn ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_terminates_loses_its_name_at_once_and_the_next_gets_it():
    world = world_of(worker=replicas(2, "OnFailure"))
    world.run()
    world.settle()
    world.delete("m-worker-0")
    world.step()
    assert allowed(world) == {"m-worker-1"}
    world.reap()
    plant(world, "m-worker-0")
    world.step()
    assert allowed(world) == {"m-worker-1"}
    del world.pods["m-worker-0"]
    world.settle()
    assert allowed(world) == {"m-worker-0", "m-worker-1"}


@pytest.mark.parametrize("code", [137, 255])
def test_a_name_is_removed_before_the_operator_deletes_the_pod(code: int):
    world = world_of(worker=replicas(2, "ExitCode"))
    world.run()
    world.settle()
    world.end("m-worker-1", code)
    made = world.step()
    (deleted,) = [n for n, each in enumerate(made.actions) if pod_deleted(each)]
    assert place_of_rights(made) < deleted
    assert allowed(world) == {"m-worker-0"}


def test_names_are_removed_before_a_whole_group_is_restarted():
    """The other workers run until the operator deletes them."""
    scope = {"trainop.kubeflow.org/restart-scope": "job"}
    world = world_of(worker=replicas(3, "ExitCode"), annotations=scope)
    world.run()
    world.settle()
    world.end("m-worker-1", 137)
    made = world.step()
    assert sum(pod_deleted(each) for each in made.actions) > 1
    assert place_of_rights(made) == 0
    assert allowed(world) == set()


def test_names_above_the_number_of_workers_are_removed_before_their_pods():
    world = world_of(3)
    world.run()
    world.settle()
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = 1
    made = world.step()
    assert any(pod_deleted(each) for each in made.actions)
    assert place_of_rights(made) == 0
    assert allowed(world) == {"m-worker-0"}


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_has_ended_has_no_rights(policy: str, code: int):
    world = world_of(run={"cleanPodPolicy": policy})
    world.run()
    world.end("m-launcher", code)
    made = world.step()
    assert place_of_rights(made) == 0
    assert allowed(world) == set()
    world.settle()
    assert not world.step().actions


def test_rights_are_withdrawn_before_the_time_to_live_deletes_the_job():
    world = world_of(run={"ttlSecondsAfterFinished": 0})
    world.run()
    world.end("m-launcher", 0)
    for _ in range(5):
        made = world.plan(world.snapshot())
        if any(isinstance(each, DeleteJob) for each in made.actions):
            break
        world.carry_out(made)
    else:
        pytest.fail("the job is never deleted")
    assert allowed(world) == set()


def test_a_suspended_job_has_no_rights_and_gets_them_back():
    world = world_of()
    world.run()
    world.settle()
    world.spec["runPolicy"] = {"suspend": True}
    made = world.step()
    assert place_of_rights(made) == 0
    assert allowed(world) == set()
    world.settle()
    world.spec["runPolicy"] = {"suspend": False}
    world.reap()
    world.step()
    assert allowed(world) == set()
    world.settle()
    assert allowed(world) == {"m-worker-0", "m-worker-1"}


def test_a_job_that_is_being_deleted_has_no_rights():
    world = world_of()
    before = world.raw["status"]
    world.raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made = world.step()
    assert [applied(each) for each in made.actions] == [True]
    assert allowed(world) == set()
    assert world.raw["status"] == before
    assert not world.step().actions


def test_a_role_that_a_deleted_job_leaves_behind_is_emptied():
    world = world_of()
    role = world.companions[ROLE.resource][ACCOUNT_NAME]
    role["metadata"].pop("ownerReferences")  # kubectl delete --cascade=orphan
    patch = withdraw(Unstructured(role))
    assert patch is not None
    assert (patch.name, patch.uid, patch.body) == (ACCOUNT_NAME, role["metadata"]["uid"], {"rules": []})
    assert withdraw(Unstructured({**role, "rules": []})) is None


@pytest.mark.parametrize("change", ["name", "annotations", "owner"])
def test_the_role_of_somebody_else_is_not_emptied(change: str):
    role = world_of().companions[ROLE.resource][ACCOUNT_NAME]
    if change == "name":
        role["metadata"]["name"] = "other"
    elif change == "annotations":
        role["metadata"]["annotations"] = {}
    else:
        role["metadata"]["ownerReferences"][0]["name"] = "other"
    assert withdraw(Unstructured(role)) is None


# Whatever happens -----------------------------------------------------------------------------------------------------

POD_NAMES = st.sampled_from(["m-worker-0", "m-worker-1", "m-worker-2", "m-launcher"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["run", "fail", "delete", "vanish", "steal", "free", "disown"]), POD_NAMES),
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["suspend", "resume", "wait", "reap"]), st.none()),
)


def happen(world: MpiWorld, what: str, about: Any) -> None:
    """Somebody, or the kubelet, does something."""
    if isinstance(about, str):
        happen_to_pod(world, what, about)
    elif what == "scale":
        world.spec["mpiReplicaSpecs"]["Worker"] = replicas(about, "ExitCode")
    elif what == "wait":
        world.pass_time(20)
    elif what == "reap":
        world.reap()
    else:
        world.spec["runPolicy"] = {"suspend": what == "suspend"}


def happen_to_pod(world: MpiWorld, what: str, name: str) -> None:
    if what in {"vanish", "steal"}:
        world.pods.pop(name, None)
    if what == "steal":
        plant(world, name, labels={})
    pod = world.pods.get(name)
    if pod is None:
        return
    is_foreign = "phase" not in pod["status"]
    if what == "free" and is_foreign:
        del world.pods[name]
    elif what == "disown":
        pod["metadata"] |= {"ownerReferences": [], "labels": {}}
    elif what == "delete":
        world.delete(name)
    elif what in {"run", "fail"} and not is_foreign:
        world.run(name) if what == "run" else world.end(name, 137)


@given(st.lists(STEPS, max_size=14))
def test_after_each_plan_the_account_may_act_in_controlled_pods_only(steps: list[tuple[str, Any]]):
    world = world_of(worker=replicas(3, "ExitCode"))
    for what, about in steps:
        happen(world, what, about)
        made = world.plan(world.snapshot())
        # What the API server has under the name of a pod, it refuses to create.
        kept = tuple(each for each in made.actions if not (pod_created(each) and each.name in world.pods))
        world.carry_out(Plan(made.annotations, made.status, actions=kept, transitions=made.transitions))
        assert allowed(world) <= controlled(world), f"after {what} {about}"
        if world.job is None or world.is_true("Failed") or world.is_true("Succeeded"):
            assert allowed(world) == set()
            assert not world.is_true("Failed") or not taken_of(world)
            return


# Pace -----------------------------------------------------------------------------------------------------------------


def test_a_role_is_not_extended_for_every_worker():
    world = world_of(10)
    world.run()
    world.settle()
    for index in (3, 4, 5):
        world.pods.pop(f"m-worker-{index}")
    gone = {"m-worker-3", "m-worker-4", "m-worker-5"}
    made = world.plan(world.snapshot())
    world.carry_out(made)
    assert allowed(world) == controlled(world) - gone
    world.pods.pop("m-worker-4")
    made = world.plan(world.snapshot())
    assert not any(applied(each) and each.resource == ROLE.resource for each in made.actions)
    assert made.requeue_after is not None
    assert made.requeue_after <= 15
    world.pass_time(15)
    world.carry_out(Plan(actions=tuple(e for e in world.plan(world.snapshot()).actions if applied(e))))
    assert allowed(world) == controlled(world)
    world.settle()
    assert len(allowed(world)) == 10


# Jobs of former versions, and unreadable ones -------------------------------------------------------------------------


def test_a_launcher_of_a_former_version_may_list_pods_until_it_runs():
    world = world_of()
    role = world.companions[ROLE.resource][ACCOUNT_NAME]
    role["rules"][0] = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    before = role["rules"]
    world.settle()
    assert rules(world) == before
    world.run("m-launcher")
    world.settle()
    assert allowed(world) == {"m-worker-0", "m-worker-1"}


@pytest.mark.parametrize("kind", [ROLE, BINDING])
def test_what_somebody_has_deleted_is_made_again(kind: Any):
    world = world_of()
    world.companions[kind.resource].clear()
    world.settle()
    assert allowed(world) == {"m-worker-0", "m-worker-1"}


def test_a_role_that_somebody_has_changed_is_written_again():
    world = world_of()
    world.companions[ROLE.resource][ACCOUNT_NAME]["rules"][1]["resourceNames"].append("other")
    world.settle()
    assert allowed(world) == {"m-worker-0", "m-worker-1"}


def test_an_account_of_the_user_stays_bound_while_the_template_is_invalid():
    world = world_of(launcher=replicas(1, template={"serviceAccountName": "mine"}))
    world.run()
    world.settle()
    world.spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"] = "none"
    world.settle()
    assert world.companions[BINDING.resource][ACCOUNT_NAME]["subjects"][0]["name"] == "mine"
    assert world.companions[ACCOUNT.resource] == {}
    assert allowed(world) == {"m-worker-0", "m-worker-1"}


def test_an_unreadable_number_of_workers_neither_adds_nor_removes_rights():
    world = world_of()
    world.run()
    world.settle()
    world.spec["mpiReplicaSpecs"]["Worker"]["replicas"] = "two"
    world.settle()
    assert allowed(world) == {"m-worker-0", "m-worker-1"}
    world.pods.pop("m-worker-0")
    world.settle()
    assert allowed(world) == {"m-worker-1"}


# The init container that waits ----------------------------------------------------------------------------------------

KUBECTL = """#!/bin/sh
echo call >> {folder}/calls
shift 2
for each in "$@"; do
  case "$each" in
    --*) exit ;;
    *-worker-*) [ -e {folder}/$each ] && echo "$each   $(cat {folder}/$each)" || echo "Error: $each is forbidden" >&2 ;;
  esac
done
"""


@pytest.mark.parametrize(("workers", "calls"), [(1, 1), (MOST_ASKED, 1), (MOST_ASKED + 1, 2), (3 * MOST_ASKED, 3)])
def test_the_init_container_asks_for_each_worker_by_its_name(tmp_path: Path, workers: int, calls: int):
    fake = tmp_path / "kubectl"
    fake.write_text(KUBECTL.format(folder=tmp_path))
    fake.chmod(0o755)
    lines = [f"m-worker-{index} slots=2\n" for index in range(workers)]
    (tmp_path / "hostfile").write_text("m-launcher slots=2\n" + "".join(lines))
    for index in range(workers):
        (tmp_path / f"m-worker-{index}").write_text("Running\n")
    script = WAIT.format(folder=tmp_path, kubectl=tmp_path, most=MOST_ASKED)
    environment = {**os.environ, "NAMESPACE": "bar"}
    subprocess.run(["/bin/sh", "-c", script], check=True, timeout=60, env=environment)
    assert len((tmp_path / "calls").read_text().splitlines()) == calls

    (tmp_path / "m-worker-0").write_text("Pending\n")
    (tmp_path / "sleep").write_text(f"#!/bin/sh\nrm -f {tmp_path}/m-worker-0; [ -e {tmp_path}/slept ] && kill $PPID\n")
    (tmp_path / "sleep").chmod(0o755)
    (tmp_path / "slept").touch()
    waiting = subprocess.run(
        ["/bin/sh", "-c", script],
        check=False,
        timeout=60,
        env={**environment, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert waiting.returncode != 0, "it does not end while a worker is missing"
    assert f"{min(workers, MOST_ASKED) - 1} of {min(workers, MOST_ASKED)} workers are running" in waiting.stdout


@pytest.mark.parametrize("kind", [ROLE, BINDING])
def test_an_object_that_is_being_deleted_is_waited_for_and_not_written(kind: Any):
    world = world_of()
    ours = world.companions[kind.resource][ACCOUNT_NAME]
    ours["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.companions[ROLE.resource][ACCOUNT_NAME]["rules"][1]["resourceNames"].append("other")
    made = world.step()
    written = [each.resource for each in made.actions if applied(each)]
    assert kind.resource not in written


@pytest.mark.parametrize("kind", [ROLE, BINDING])
def test_the_name_of_an_object_that_is_being_deleted_is_looked_at_again_soon(kind: Any):
    world = world_of(settled=False)
    leaving = {"name": ACCOUNT_NAME, "namespace": "bar", "uid": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.companions[kind.resource][ACCOUNT_NAME] = {"metadata": leaving}
    made = world.step()
    assert made.requeue_after is not None
    assert made.requeue_after <= 30
    assert not world.event_messages("ErrResourceExists")


def test_a_changed_account_is_bound_anew():
    world = world_of()
    world.spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["serviceAccountName"] = "mine"
    world.settle()
    assert world.companions[BINDING.resource][ACCOUNT_NAME]["subjects"][0]["name"] == "mine"
