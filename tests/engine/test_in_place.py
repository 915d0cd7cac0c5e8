"""The annotation restart-mode: `docs/survive.md`, "Restart in place". The test plays the kubelets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, SHAPES, make
from tests.engine.builders import NOW, make_job, manifest_of, names, pod_created, pod_deleted, template
from tests.engine.world import DecidingWorld, World
from trainop.engine.framework import Framework, may_outlive
from trainop.engine.kind import kind_of
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import Snapshot
from trainop.engine.status import format_time
from trainop.kinds.mpi.exec.kind import MPI_EXEC
from trainop.kinds.paddle import PADDLE
from trainop.kinds.pytorch import PYTORCH
from trainop.kinds.tensorflow import TENSORFLOW
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json

MODE = "trainop.kubeflow.org/restart-mode"
IN_PLACE = {MODE: "in-place"}
SOUND = [kind for kind in KINDS if FRAMEWORKS[kind].outlives is not may_outlive]
RANKS = SHAPES | {"PaddleJob": {"Worker": 3}, "TFJob": {"Chief": 1, "Worker": 2}}
"""Jobs without replicas that only serve others."""
RESET: Json = {"exitCode": 137, "reason": "RestartingAllContainers", "message": "The container is removed"}


class InPlaceWorld(DecidingWorld):
    """Decides as the operator does; its kubelets restart containers in place."""

    serves_rules: bool | None = True

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), serves_rules=self.serves_rules)

    @property
    def condition(self) -> Json:
        found = [each for each in self.status["conditions"] if each["type"] == "RestartsInPlace"]
        return found[0] if found else {}

    @property
    def last_failure(self) -> Json:
        found: Json = self.status.get("lastFailure") or {}
        return found

    def _container(self, name: str) -> Json:
        (found,) = self.pods[name]["status"]["containerStatuses"]
        return dict(found)

    def exits(self, name: str, code: int = 1, message: str = "") -> None:
        """The kubelet has seen the exit, and has not yet removed the containers."""
        now = format_time(self.now)
        end = {"exitCode": code, "reason": "Error", "message": message, "startedAt": now, "finishedAt": now}
        self.set_pod(name, "Running", containerStatuses=[self._container(name) | {"state": {"terminated": end}}])

    def removed(self, name: str, phase: str = "Running") -> None:
        """The kubelet has removed the containers of the pod (kubernetes `pkg/kubelet/kubelet_pods.go`)."""
        old = self._container(name)
        waiting: Json = {"waiting": {"reason": "RestartingAllContainers"}}
        new = old | {"restartCount": old["restartCount"] + 1, "state": waiting, "lastState": {"terminated": RESET}}
        self.set_pod(name, phase, containerStatuses=[new])

    def starts(self, name: str) -> None:
        self.set_pod(name, "Running", containerStatuses=[self._container(name) | {"state": {}}])

    def restarts(self, *pods: str, code: int = 1) -> None:
        """The whole of it, at once for whoever looks less often."""
        for name in pods:
            self.exits(name, code)
            self.removed(name)
            self.starts(name)

    def backs_off(self, name: str, code: int = 1) -> None:
        """A kubelet without rules waits before it restarts the container."""
        self.exits(name, code)
        old = self._container(name)
        state: Json = {"waiting": {"reason": "CrashLoopBackOff"}}
        self.set_pod(name, "Running", containerStatuses=[old | {"state": state, "lastState": old["state"]}])

    def continues(self, name: str) -> None:
        old = self._container(name)
        self.set_pod(name, "Running", containerStatuses=[old | {"restartCount": old["restartCount"] + 1, "state": {}}])


def started(kind: str = "PyTorchJob", policy: str = "OnFailure", **fields: Any) -> InPlaceWorld:
    annotations = IN_PLACE | fields.pop("annotations", {})
    job = make(kind, fields.pop("roles", RANKS[kind]), policy=policy, annotations=annotations, **fields)
    world = InPlaceWorld(job, framework=FRAMEWORKS[kind])
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    world.pass_time(1000)
    return world


def rules(world: InPlaceWorld) -> list[Json]:
    """Of the framework's container in each pod."""
    containers = [each for pod in world.pods.values() for each in pod["spec"]["containers"]]
    names = ("restartPolicy", "restartPolicyRules")
    return [{name: each[name] for name in names if name in each} for each in containers]


# The pods -------------------------------------------------------------------------------------------------------------


def test_all_kinds_of_collectives_can():
    assert len(SOUND) == len(KINDS) - 1  # all but MXJob


@pytest.mark.parametrize("kind", SOUND)
def test_pods_get_the_rule_for_all_failures(kind: str):
    world = started(kind)
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
    assert rules(world) == [{"restartPolicy": "OnFailure", "restartPolicyRules": [rule]}] * 3
    assert {pod["spec"]["restartPolicy"] for pod in world.pods.values()} == {"OnFailure"}
    assert world.condition["status"] == "True"


@pytest.mark.parametrize("kind", SOUND)
def test_with_policy_exit_code_the_rule_is_for_the_codes_that_restart(kind: str):
    world = started(kind, "ExitCode")
    (entry, *_) = rules(world)
    assert entry["restartPolicy"] == "Never"
    (rule,) = entry["restartPolicyRules"]
    assert rule["exitCodes"] == {"operator": "In", "values": [*range(128, 256)]}
    assert len(rule["exitCodes"]["values"]) <= 255  # of the API server's validation
    world.end("j-worker-0", 1)
    world.settle()
    assert world.is_true("Failed")  # a permanent code, as ever


def test_only_the_container_of_the_framework_gets_it():
    pod = template(
        containers=[{"name": "sidecar", "image": "img"}, {"name": "pytorch", "image": "img"}],
        initContainers=[{"name": "fetch", "image": "img", "restartPolicy": "Always"}],
    )
    world = InPlaceWorld(make_job(1, None, policy="OnFailure", tmpl=pod, annotations=IN_PLACE))
    world.settle()
    assert [bool(each) for each in rules(world)] == [False, True]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["OnFailure", "ExitCode"])
def test_without_the_annotation_nothing_changes(kind: str, policy: str):
    world = InPlaceWorld(make(kind, policy=policy), framework=FRAMEWORKS[kind])
    world.settle()
    assert not any(rules(world))
    assert world.condition == {}
    assert not any(action.has_rules for action in world.step().actions if pod_created(action))


# A burst --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOUND)
@pytest.mark.parametrize(("policy", "code"), [("OnFailure", 1), ("ExitCode", 130)])
def test_one_failed_rank_and_its_consequences_are_one_restart(kind: str, policy: str, code: int):
    world = started(kind, policy, run={"backoffLimit": 1})
    first, *others = world.pods
    before = dict(world.pods)
    world.exits(first, code, "CUDA error: an illegal memory access")
    made = world.step()
    assert not made.actions
    assert world.history["failures"] == 1
    assert world.is_true("Restarting")
    assert not world.is_true("Running")
    assert world.last_failure["pod"] == first
    assert world.last_failure["exitCode"] == code
    assert world.last_failure["attempt"] == 1
    assert world.last_failure["log"] == ["CUDA error: an illegal memory access"]
    (event,) = world.event_messages(f"{kind}Restarting")
    assert "in place" in event
    assert first in event

    world.removed(first, "Pending")  # init containers run again
    world.settle()
    for name in others:
        world.pass_time(1)
        world.exits(name, 134 if policy == "ExitCode" else 1, "connection reset by peer")
        world.settle()
        world.removed(name)
        world.settle()
    for name in others:
        world.starts(name)
    world.settle()
    assert not world.is_true("Running")
    world.starts(first)
    world.settle()
    assert world.is_true("Running")
    assert not world.is_true("Restarting")
    assert world.history["failures"] == 1
    assert world.counts["restarted"] == 1
    assert world.event_messages(f"{kind}Restarting") == [event]
    assert world.last_failure["exitCode"] == code
    assert world.pods.keys() == before.keys()
    assert [pod["metadata"]["uid"] for pod in world.pods.values()] == [
        pod["metadata"]["uid"] for pod in before.values()
    ]
    assert world.created_pods == 3


def test_an_operator_that_sees_only_the_end_counts_one_restart():
    world = started()
    world.restarts(*world.pods)
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 1
    assert world.counts["restarted"] == 1
    assert world.last_failure["reason"] == "RestartingAllContainers"
    assert "exitCode" not in world.last_failure


def test_a_restarted_operator_continues_the_burst():
    world = started()
    world.restarts("j-worker-0")
    world.settle()
    world.pass_time(60)
    again = InPlaceWorld(world.raw)
    again.pods, again.services, again.now = world.pods, world.services, world.now
    again.settle()
    assert again.history == world.history
    again.restarts("j-worker-1", "j-master-0")
    again.settle()
    assert again.is_true("Running")
    assert again.history["failures"] == 1


def test_the_cause_is_the_first_failure_also_if_it_is_seen_later():
    world = started()
    world.pass_time(1)
    world.exits("j-worker-1", 1, "connection reset by peer")
    world.step()
    assert world.last_failure["pod"] == "j-worker-1"
    world.pass_time(-1)
    world.exits("j-worker-0", 1, "RuntimeError: CUDA out of memory")
    world.pass_time(1)
    world.removed("j-worker-1")
    world.restarts("j-master-0")
    world.settle()
    world.removed("j-worker-0")
    world.starts("j-worker-0")
    world.starts("j-worker-1")
    world.settle()
    assert world.is_true("Running")
    assert world.last_failure["pod"] == "j-worker-0"
    assert world.last_failure["log"] == ["RuntimeError: CUDA out of memory"]


def test_the_next_burst_is_the_next_restart():
    world = started()
    for number in (1, 2, 3):
        world.restarts(*world.pods)
        world.settle()
        assert world.history["failures"] == number
        assert world.is_true("Running")
        world.settle()
        world.pass_time(601)
    assert world.created_pods == 3
    world.exits("j-worker-0", 5)
    world.step()
    assert world.last_failure["attempt"] == 4
    assert world.last_failure["exitCode"] == 5


def test_a_replica_that_restarts_twice_in_a_burst_counts_once():
    world = started()
    world.restarts("j-worker-0", "j-worker-0", "j-worker-1")
    world.settle()
    world.restarts("j-master-0", "j-worker-0")
    world.settle()
    assert world.is_true("Running")
    world.settle()
    assert world.history["failures"] == 1


def test_a_kubelet_without_the_rules_restarts_the_container():
    world = started()
    world.serves_rules = False
    for name in list(world.pods):
        world.backs_off(name)
    world.settle()
    assert world.history["failures"] == 1
    assert not world.is_true("Running")
    for name in list(world.pods):
        world.continues(name)
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 1


def test_a_new_replica_need_not_restart():
    world = started()
    world.restarts("j-worker-0")
    world.settle()
    world.pass_time(2)
    world.spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    world.settle()
    world.run()
    world.restarts("j-master-0", "j-worker-1")
    world.settle()
    assert world.is_true("Running")
    assert world.created_pods == 4


# Budgets, back-off, time-outs -----------------------------------------------------------------------------------------


def test_the_back_off_limit_counts_bursts_and_not_containers():
    world = started(run={"backoffLimit": 2})
    for _ in range(2):
        world.restarts(*world.pods)
        world.settle()
        world.pass_time(601)
    assert not world.is_true("Failed")
    world.exits("j-worker-0", 7)
    world.settle()
    assert world.is_true("Failed")
    assert "backoff limit" in world.status["conditions"][-1]["message"]
    assert world.last_failure["exitCode"] == 7
    assert not world.living()


def test_a_job_that_fails_again_too_soon_is_recreated_after_the_back_off():
    world = started()
    delays = []
    for _ in range(12):
        world.restarts(*world.pods)
        made = world.step()
        delays.append(bool(names(made, pod_deleted)))
        if delays[-1]:
            break
        world.settle()
        world.pass_time(7)
    assert delays == [False] * 4 + [True]  # the fifth restart has to wait for 8 s, and the job ran for less
    assert world.history["failures"] == 5
    assert world.counts["restarted"] == 5
    world.reap()
    made = world.step()
    assert not names(made, pod_created)
    assert made.requeue_after == pytest.approx(8, abs=1)
    world.pass_time(9)
    world.settle()
    assert len(world.living()) == 3
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 5


@pytest.mark.parametrize("policy", ["OnFailure", "ExitCode"])
def test_ranks_that_hang_are_recreated_after_the_time_out(policy: str):
    world = started(policy=policy)
    world.restarts("j-worker-0", code=137)
    world.settle()
    world.pass_time(119)
    made = world.step()
    assert not made.actions
    assert made.requeue_after == pytest.approx(1, abs=1)
    world.pass_time(2)
    made = world.step()
    assert sorted(names(made, pod_deleted)) == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert any("2 replica(s) have not restarted in place within 120 s" in each.message for each in world.events)
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 1
    assert world.counts["restarted"] == 1
    assert world.created_pods == 6
    assert "burst" not in world.history
    assert "inPlace" not in world.history


def test_replicas_that_have_restarted_may_take_long_to_start():
    """Their init containers run again."""
    world = started()
    for name in world.pods:
        world.exits(name)
        world.removed(name, "Pending")
    world.settle()
    world.pass_time(3600)
    made = world.step()
    assert not made.actions
    assert made.requeue_after is None
    for name in list(world.pods):
        world.starts(name)
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 1


def test_no_pod_is_created_before_all_are_gone():
    world = started()
    world.restarts("j-worker-0")
    world.settle()
    world.pass_time(121)
    world.settle()
    del world.pods["j-worker-1"]
    world.settle()
    assert world.created_pods == 3


def test_a_replica_that_has_succeeded_is_recreated_with_the_others():
    world = started()
    world.end("j-worker-1", 0)
    world.settle()
    world.exits("j-worker-0", 1)
    made = world.step()
    assert len(names(made, pod_deleted)) == 3
    assert world.history["failures"] == 1


def test_a_clock_that_is_set_back_does_not_prolong_the_time_out():
    world = started()
    world.restarts("j-worker-0")
    world.settle()
    world.pass_time(-3600)
    assert len(names(world.step(), pod_deleted)) == 3


def test_a_disruption_recreates_the_whole_job():
    world = started()
    world.restarts("j-worker-0")
    world.settle()
    world.delete("j-worker-1")
    made = world.step()
    assert sorted(names(made, pod_deleted)) == ["j-master-0", "j-worker-0"]
    assert (world.history["failures"], world.history["disruptions"]) == (1, 1)
    assert "burst" not in world.history
    world.reap()
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert (world.history["failures"], world.history["disruptions"]) == (1, 1)


def test_a_pod_that_fails_for_good_in_a_burst_belongs_to_it():
    """Such as on a node whose kubelet does not know the rules."""
    world = started(policy="ExitCode", run={"backoffLimit": 1})
    world.restarts("j-worker-0", code=137)
    world.settle()
    world.end("j-worker-1", 137)
    world.settle()
    assert not world.is_true("Failed")
    assert world.living() == []
    assert world.history["failures"] == 1


def test_without_rules_replicas_with_exit_codes_are_recreated_together():
    world = InPlaceWorld(make_job(1, 2, policy="ExitCode", annotations=IN_PLACE))
    world.serves_rules = False
    world.settle()
    assert not any(rules(world))
    world.run()
    world.settle()
    assert (world.condition["status"], world.condition["reason"]) == ("False", "RestartRulesNotServed")
    assert "RestartAllContainers" in world.condition["message"]
    world.end("j-worker-0", 137)
    made = world.step()
    assert len(names(made, pod_deleted)) == 3
    assert world.history["failures"] == 1


def test_suspension_ends_a_burst():
    world = started(annotations={"trainop.kubeflow.org/checkpoint-grace": "1m"})
    world.status["trainerStatus"] = {"metrics": [{"name": "checkpoint_step", "value": "7"}]}
    world.restarts("j-worker-0")
    world.settle()
    world.spec["runPolicy"] = {"suspend": True}
    world.settle()
    assert world.is_true("Suspended")
    assert world.living() == []
    world.reap()
    world.spec["runPolicy"] = {"suspend": False}
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert world.history == {}


def test_success_in_a_burst_is_a_success():
    world = started()
    world.restarts("j-worker-0")
    world.settle()
    world.end("j-master-0", 0)
    world.settle()
    assert world.is_true("Succeeded")


# An annotation that comes and goes ------------------------------------------------------------------------------------


def test_restarts_from_before_the_annotation_do_not_count():
    world = InPlaceWorld(make_job(1, 2, policy="OnFailure"))
    world.settle()
    world.run()
    for name in list(world.pods):
        world.backs_off(name)
        world.continues(name)
    world.settle()
    world.raw["metadata"]["annotations"] |= IN_PLACE
    world.settle()
    assert "failures" not in world.history
    assert world.is_true("Running")
    world.pass_time(600)
    world.settle()
    assert world.living()
    assert "failures" not in world.history
    world.backs_off("j-worker-0")
    world.settle()
    assert world.history["failures"] == 1


def test_without_the_annotation_the_condition_goes():
    world = started()
    world.restarts("j-worker-0")
    world.settle()
    del world.raw["metadata"]["annotations"][MODE]
    world.settle()
    assert world.condition == {}
    world.pass_time(600)
    world.settle()
    assert len(world.living()) == 3


# What cannot be followed ----------------------------------------------------------------------------------------------

NEVER: list[tuple[Framework, dict[str, Any], str]] = [
    (PYTORCH, {"policy": "Never"}, "Master has restartPolicy Never, and it must be OnFailure or ExitCode"),
    (PYTORCH, {"policy": "Always"}, "Master has restartPolicy Always"),
    (PYTORCH, {"annotations": {MODE: "inplace"}}, '"inplace" is ignored: it must be "in-place"'),
    (PYTORCH, {"annotations": {MODE: "x" * 5000}}, 'it must be "in-place"'),
    (PYTORCH, {"annotations": IN_PLACE | {"trainop.kubeflow.org/restart-scope": "role"}}, 'must not be "role"'),
    (PYTORCH, {"elasticPolicy": {"minReplicas": 1}}, "torchrun restarts the workers of an elastic job itself"),
    (PADDLE, {"roles": {"Master": 1, "Worker": 2}}, "its masters, the parameter servers, run on"),
    (TENSORFLOW, {"roles": {"PS": 1, "Evaluator": 1, "Worker": 2}}, "replicas of PS and Evaluator run on"),
    (TENSORFLOW, {"roles": {"Worker": 2}, "enableDynamicWorker": True}, "dynamic workers run on"),
    (FRAMEWORKS["MXJob"], {}, "its replicas run on when another one fails"),
    (
        PYTORCH,
        {"template": {"containers": [{"name": "pytorch", "image": "img", "restartPolicy": "Never"}]}},
        "container pytorch of Master has a restartPolicy of its own",
    ),
]


@pytest.mark.parametrize(("framework", "fields", "why"), NEVER)
def test_what_cannot_restart_in_place_says_why_once_and_is_recreated(
    framework: Framework, fields: dict[str, Any], why: str
):
    fields = {"policy": "OnFailure", "annotations": IN_PLACE} | fields
    roles = fields.pop("roles", None)
    world = InPlaceWorld(make(framework.kind, roles, **fields), framework=framework)
    world.settle()
    world.run()
    world.settle()
    (message,) = world.event_messages("RestartModeIgnored")
    assert message.startswith(f"metadata.annotations[{MODE}]: ")
    assert why in message
    assert len(message) < 500
    assert world.condition == {}
    own = fields.get("template", {}).get("containers", [{}])[0].get("restartPolicy")
    assert all("restartPolicyRules" not in each and each.get("restartPolicy") == own for each in rules(world))


def test_the_launcher_of_an_mpi_job_has_no_rules():
    raw = make_job(None, None, annotations=IN_PLACE)
    pod = {"spec": {"containers": [{"name": "mpi", "image": "img"}]}}
    raw["spec"] = {"mpiReplicaSpecs": {r: {"replicas": 1, "template": pod} for r in ("Launcher", "Worker")}}
    raw["spec"]["mpiReplicaSpecs"]["Launcher"]["restartPolicy"] = "OnFailure"
    raw["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    made = kind_of(MPI_EXEC).decide(Snapshot(World(raw).snapshot().job, (), (), NOW))
    assert any("run on when another one fails" in each.event.message for each in made.notices)
    assert not any("restartPolicyRules" in json.dumps(manifest_of(each)) for each in made.actions if pod_created(each))


def test_a_single_replica_of_any_kind_restarts_in_place():
    world = started("MXJob", roles={"Worker": 1})
    assert all(rules(world))
    world.restarts("j-worker-0")
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 1


def test_a_spec_that_becomes_unreadable_changes_no_mode():
    world = started()
    specs = world.spec["pytorchReplicaSpecs"]
    world.spec["pytorchReplicaSpecs"] = "x"
    world.settle()
    assert world.condition["status"] == "True"
    world.spec["pytorchReplicaSpecs"] = specs
    world.settle()
    assert world.living()
    assert "failures" not in world.history


@pytest.mark.parametrize(
    "stored", [{"burst": 7, "inPlace": 7}, {"burst": "soon", "inPlace": "!!"}, {"inPlace": "A" * 9}, {"burst": None}]
)
def test_a_damaged_history_is_no_restart(stored: Json):
    world = started()
    world.raw["metadata"]["annotations"][RESTARTS] = json.dumps({"job": "uid-j"} | stored)
    made = world.step()
    assert not made.actions
    assert "failures" not in world.history


def test_restart_counts_beyond_any_entry_are_one_restart():
    world = started()
    for name in world.pods:
        world.set_pod(name, "Running", containerStatuses=[world._container(name) | {"restartCount": 2**31 - 1}])
    world.settle()
    assert world.history["failures"] == 1
    world.pass_time(1000)
    world.settle()
    assert world.history["failures"] == 1
    assert world.is_true("Running")


def test_restarts_of_other_containers_are_the_concern_of_the_kubelet():
    world = started()
    (main,) = world.pods["j-worker-0"]["status"]["containerStatuses"]
    sidecar = {"name": "sidecar", "restartCount": 5, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    world.set_pod("j-worker-0", "Running", containerStatuses=[sidecar, main])
    world.settle()
    assert "failures" not in world.history
    assert world.is_true("Running")


# Writes that fail, or an operator that is killed between them ---------------------------------------------------------


def annotate_only(world: InPlaceWorld) -> None:
    """A pass of which only the annotation is written."""
    assert world.job is not None
    made = kind_of(world.framework).decide(world.snapshot())
    assert made.annotations
    world.carry_out(replace(made, status=None, transitions=(), notices=(), actions=()))


@pytest.mark.parametrize("kind", SOUND)
@pytest.mark.parametrize("seen", ["exit", "restart", "end"])
def test_a_failure_whose_status_was_not_written_is_told_by_the_next_pass(kind: str, seen: str):
    world = started(kind)
    first, *others = world.pods
    world.exits(first, 7)
    if seen != "exit":
        world.removed(first)
        world.starts(first)
    if seen == "end":
        world.restarts(*others, code=8)
    annotate_only(world)
    assert world.last_failure == {}
    world.step()
    assert world.is_true("Restarting")
    assert not world.is_true("Running")
    assert world.last_failure["attempt"] == 1
    assert world.last_failure.get("exitCode") == (7 if seen == "exit" else None)
    assert len(world.event_messages(f"{kind}Restarting")) == 1
    assert world.counts["restarted"] == world.history["failures"] == 1
    world.settle()
    if seen == "end":
        world.pass_time(1)
        world.settle()
        assert world.is_true("Running")
    assert len(world.event_messages(f"{kind}Restarting")) == world.history["failures"] == 1


@pytest.mark.parametrize("why", ["time-out", "too soon"])
def test_pods_that_were_not_deleted_are_deleted_by_the_next_pass_and_not_counted_again(why: str):
    world = started()
    if why == "too soon":
        for _ in range(4):
            world.restarts(*world.pods)
            world.settle()
            world.pass_time(7)
        world.restarts(*world.pods)
    else:
        world.restarts("j-worker-0")
        world.settle()
        world.pass_time(121)
    annotate_only(world)
    failures = world.history["failures"]
    assert "burst" not in world.history
    made = world.step()
    assert sorted(names(made, pod_deleted)) == sorted(world.pods)
    assert world.history["failures"] == failures
    assert world.is_true("Restarting")
    world.reap()
    world.pass_time(300)
    world.settle()
    world.run()
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == failures


def test_the_attempt_is_that_of_the_job_and_not_of_the_container():
    world = started(policy="ExitCode")
    world.restarts(*world.pods, *world.pods, code=137)
    world.settle()
    world.pass_time(1)
    world.settle()
    assert world.is_true("Running")
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    world.set_pod("j-worker-0", "Failed", containerStatuses=[world._container("j-worker-0") | {"state": ended}])
    world.settle()
    assert world.is_true("Failed")
    assert world.last_failure["attempt"] == 2


def test_a_pod_that_is_created_in_the_second_of_the_failure_need_not_restart():
    world = started()
    world.delete("j-worker-1")
    del world.pods["j-worker-1"]
    world.restarts("j-worker-0")
    world.settle()
    world.run("j-worker-1")
    world.restarts("j-master-0")
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 1


def test_a_failure_before_the_first_status_counts():
    """Its write may fail for as long as a replica needs to fail."""
    world = InPlaceWorld(make_job(1, 2, policy="OnFailure", annotations=IN_PLACE))
    made = world.step()
    assert made.status is not None
    del world.raw["status"]
    world.run()
    world.pass_time(20)
    world.restarts(*world.pods)
    world.settle()
    world.pass_time(1)
    world.settle()
    assert world.is_true("Running")
    assert world.history["failures"] == 1
    assert world.last_failure["attempt"] == 1


@pytest.mark.parametrize("status", ["x", 5, [], None, {"conditions": "x"}, {"conditions": 5}])
def test_a_status_that_is_none_stops_nothing(status: Any):
    world = started()
    world.raw["status"] = status
    world.restarts(*world.pods)
    world.settle()
    world.pass_time(1)
    world.settle()
    assert world.is_true("Running")
