"""Nodes on which pods of a job have ended repeatedly are avoided for a while, for every kind and no longer."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controllers.kinds import KINDS, last
from tests.controllers.worlds import WORLDS, decide, settle, start
from tests.engine.builders import NOW, UID, stamp
from tests.engine.world import World
from tests.kinds.mpi_world import MpiWorld
from trainop.engine.actions import Remove
from trainop.engine.bad_nodes import (
    MAX_COUNTED,
    MAX_NODES,
    Avoidance,
    AvoidRule,
    BadNodes,
    find_fault,
    read_avoidance,
    read_rule,
)
from trainop.engine.extensions import AVOID_BAD_NODES, BAD_NODES
from trainop.engine.pod_status import ContainerState, ContainerStatus, PodCondition, PodStatus, Terminated
from trainop.engine.restart_history import RESTARTS
from trainop.engine.seen import ChildMetadata, Pod, PodSpec
from trainop.engine.status import format_time
from trainop.runtime import PODS, Json, Metadata

RESTARTED = [kind for kind in WORLDS if kind != "DIJob"]
RULE = AvoidRule(required=True)
HOURS = 3600.0


def requirement(*nodes: str) -> Json:
    return {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(nodes)}


def victim(kind: str) -> str:
    """A pod whose end restarts the job."""
    return last(kind) if kind in KINDS else "foo-worker-1"


def lose(world: World, name: str, node: str, **status: Any) -> None:
    """The node ends the pod; then it is gone, and its replacement runs."""
    world.pods[name]["spec"]["nodeName"] = node
    world.set_pod(name, "Failed", **(status or {"reason": "Evicted", "message": "The node was low on memory"}))
    settle(world)
    world.delete(name)
    world.reap()
    world.pass_time(10)
    settle(world)


def affinity(world: World, name: str) -> Json:
    found: Json = world.pods[name]["spec"].get("affinity", {})
    return found


def required_terms(world: World, name: str) -> Any:
    node = affinity(world, name).get("nodeAffinity", {})
    return node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")


def memory(world: World) -> Json:
    stored: Json = json.loads(world.raw["metadata"]["annotations"].get(BAD_NODES, "{}"))
    found: Json = stored.get("nodes", {})
    return found


def begin(kind: str, **annotations: str) -> World:
    annotations.setdefault("avoid_bad_nodes", "required")
    extra = {"replace_failed_workers": "true"} if kind == "MPIJob over ssh" else {}
    world = WORLDS[kind](**annotations, **extra)
    if kind == "MPIJob with exec":
        world.spec["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    start(world)
    return world


# The whole way --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RESTARTED)
@pytest.mark.parametrize("mode", ["required", "preferred"])
def test_a_node_on_which_two_pods_have_ended_is_avoided(kind: str, mode: str):
    world, name = begin(kind, avoid_bad_nodes=mode), victim(kind)
    assert affinity(world, name) == {}
    lose(world, name, "n1")
    assert affinity(world, name) == {}
    assert world.event_messages("NodeAvoided") == []
    start(world)
    world.pass_time(20)
    lose(world, name, "n1")
    own = {"matchExpressions": [requirement("n1")]}
    node = affinity(world, name)["nodeAffinity"]
    if mode == "required":
        assert node == {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [own]}}
    else:
        preference = {"weight": 100, "preference": own}
        assert node == {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}
    (text,) = world.event_messages("NodeAvoided")
    assert "node n1 until " in text
    assert "2 pods of the job have ended there, the last because of Evicted" in text
    assert memory(world)["n1"][0] == 2


@pytest.mark.parametrize("kind", WORLDS)
def test_without_the_annotation_nothing_is_noted(kind: str):
    world = WORLDS[kind]()
    start(world)
    if kind != "DIJob":
        name = victim(kind)
        for _ in range(3):
            world.pods[name]["spec"]["nodeName"] = "n1"
            world.set_pod(name, "Failed", reason="Evicted")
            settle(world)
    assert BAD_NODES not in world.raw["metadata"].get("annotations", {})
    assert world.event_messages("NodeAvoided") == []


def test_what_is_noted_is_written_before_a_pod_is_deleted_and_counted_once():
    world = begin("PyTorchJob")
    world.pods["j-worker-1"]["spec"]["nodeName"] = "n1"
    world.set_pod("j-worker-1", "Failed", reason="Evicted")
    made = decide(world)
    assert made.annotations.keys() == {RESTARTS, BAD_NODES}  # in one write
    assert any(isinstance(each, Remove) and each.name == "j-worker-1" for each in made.actions)
    for _ in range(3):
        decide(world)
    assert memory(world)["n1"][0] == 1


def test_another_operator_goes_on_with_what_is_remembered():
    world = begin("PyTorchJob", bad_node_after="1")
    lose(world, "j-worker-1", "n1")
    metadata = Metadata(name="j", namespace="ns", uid=UID, annotations=world.raw["metadata"]["annotations"])
    assert read_avoidance(metadata, world.now) == Avoidance(required=True, nodes=("n1",))
    copied = Metadata(name="k", namespace="ns", uid="other", annotations=world.raw["metadata"]["annotations"])
    assert read_avoidance(copied, world.now) == Avoidance(required=True, nodes=())


@pytest.mark.parametrize("kind", [kind for kind in RESTARTED if kind != "MPIJob over ssh"])
def test_a_pod_that_waits_is_made_anew_when_the_time_is_over(kind: str):
    """Its affinity would keep it from the node for ever."""
    world, name = begin(kind, bad_node_after="1", bad_node_for="1h"), victim(kind)
    lose(world, name, "n1")
    pending = world.pods[name]["metadata"]["uid"]
    assert required_terms(world, name) is not None
    made = decide(world)
    assert made.requeue_after is not None
    assert 0 < made.requeue_after <= HOURS - 10
    world.pass_time(HOURS - 11)
    settle(world)
    assert world.pods[name]["metadata"]["uid"] == pending
    world.pass_time(1)
    settle(world)
    assert "deletionTimestamp" in world.pods[name]["metadata"]
    assert world.event_messages("NodeNotAvoided") == ["Pods may run again on node n1"]
    world.reap()
    settle(world)
    assert world.pods[name]["metadata"]["uid"] != pending
    assert affinity(world, name) == {}
    assert BAD_NODES not in world.raw["metadata"]["annotations"]
    assert world.status.get("lastFailure", {}).get("reason") != "Deleted"


def test_pods_that_wait_are_made_anew_when_the_job_does_not_ask_any_more():
    world = begin("PyTorchJob", bad_node_after="1")
    lose(world, "j-worker-1", "n1")
    del world.raw["metadata"]["annotations"][AVOID_BAD_NODES]
    settle(world)
    assert BAD_NODES not in world.raw["metadata"]["annotations"]
    assert "deletionTimestamp" in world.pods["j-worker-1"]["metadata"]
    assert "deletionTimestamp" not in world.pods["j-worker-0"]["metadata"]


def test_the_end_of_a_pod_that_is_made_anew_is_no_failure():
    """It may have got a node, and started, in the moment before its deletion."""
    world = begin("PyTorchJob", bad_node_after="1", bad_node_for="1h")
    lose(world, "j-worker-1", "n1")
    world.pass_time(HOURS)
    decide(world)
    world.run("j-worker-1")
    history = json.loads(world.raw["metadata"]["annotations"][RESTARTS])
    settle(world)
    world.end("j-worker-1", 143)
    settle(world)
    after = json.loads(world.raw["metadata"]["annotations"][RESTARTS])
    assert (after.get("failures"), after.get("disruptions")) == (history.get("failures"), history.get("disruptions"))


def test_a_pod_that_has_a_node_stays():
    world = begin("PyTorchJob", bad_node_after="1", bad_node_for="1h")
    lose(world, "j-worker-1", "n1")
    world.pods["j-worker-1"]["spec"]["nodeName"] = "n2"
    world.pass_time(HOURS)
    settle(world)
    assert "deletionTimestamp" not in world.pods["j-worker-1"]["metadata"]


# The launcher of an MPIJob over ssh -----------------------------------------------------------------------------------


def launcher_template(world: MpiWorld) -> Json:
    found: Json = world.launcher["spec"]["template"]
    return found


def test_the_job_of_a_launcher_is_suspended_to_move_it():
    world = begin("MPIJob over ssh", bad_node_after="1")
    assert isinstance(world, MpiWorld)
    assert launcher_template(world)["metadata"]["annotations"]["trainop.kubeflow.org/avoided-nodes"] == ""
    world.pods["foo-launcher-x"]["spec"]["nodeName"] = "n1"
    world.set_pod("foo-launcher-x", "Failed", reason="Evicted")
    decide(world)
    assert memory(world)["n1"][0] == 1
    assert world.patches == []
    world.launch("foo-launcher-y", "Pending")
    decide(world)
    assert world.patches == [{"spec": {"suspend": True}}]
    del world.pods["foo-launcher-y"]  # by the Job controller
    settle(world)
    made = launcher_template(world)
    assert world.launcher["spec"]["suspend"] is False
    assert made["metadata"]["annotations"]["trainop.kubeflow.org/avoided-nodes"] == "n1"
    node = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert node == {"nodeSelectorTerms": [{"matchExpressions": [requirement("n1")]}]}
    world.launch("foo-launcher-z", "Pending")
    settle(world)
    assert len(world.patches) == 2  # no more than once
    world.pass_time(6 * HOURS)
    settle(world)
    assert world.patches[2:][:1] == [{"spec": {"suspend": True}}]  # it waits, and may run there again


@pytest.mark.parametrize("ends", [True, False])
def test_a_launcher_that_runs_or_ends_is_left_alone(ends: bool):
    world = begin("MPIJob over ssh", bad_node_after="1")
    assert isinstance(world, MpiWorld)
    if ends:
        world.delete("foo-launcher-x")
    else:
        world.pods["foo-launcher-x"]["spec"]["nodeName"] = "n2"
    world.pods["foo-worker-1"]["spec"]["nodeName"] = "n1"
    world.set_pod("foo-worker-1", "Failed", reason="Evicted")
    settle(world)
    assert list(memory(world)) == ["n1"]
    assert world.patches == []


def test_a_launcher_that_waits_is_moved_back_when_the_job_does_not_ask_any_more():
    world = begin("MPIJob over ssh", bad_node_after="1")
    assert isinstance(world, MpiWorld)
    world.pods["foo-launcher-x"]["spec"]["nodeName"] = "n1"
    world.set_pod("foo-launcher-x", "Failed", reason="Evicted")
    settle(world)
    assert "affinity" in launcher_template(world)["spec"]
    world.launch("foo-launcher-y", "Pending")
    settle(world)
    del world.raw["metadata"]["annotations"][AVOID_BAD_NODES]
    before = len(world.patches)
    decide(world)
    assert world.patches[before:] == [{"spec": {"suspend": True}}]
    del world.pods["foo-launcher-y"]  # by the Job controller
    settle(world)
    made = launcher_template(world)
    assert "affinity" not in made["spec"]
    assert "trainop.kubeflow.org/avoided-nodes" not in made["metadata"]["annotations"]
    assert world.launcher["spec"]["suspend"] is False
    assert len(world.patches) == before + 2


def test_a_launcher_whose_job_is_deleted_is_not_moved():
    world = begin("MPIJob over ssh", bad_node_after="1")
    assert isinstance(world, MpiWorld)
    world.pods["foo-launcher-x"]["spec"]["nodeName"] = "n1"
    world.set_pod("foo-launcher-x", "Failed", reason="Evicted")
    world.launcher["metadata"]["deletionTimestamp"] = stamp()
    decide(world)
    decide(world)
    assert world.patches == []


# What counts ----------------------------------------------------------------------------------------------------------


def pod(phase: str = "Failed", *, reason: str = "", target: str = "", end: Terminated | None = None) -> Pod:
    conditions = (PodCondition("DisruptionTarget", "True", target),) if target else ()
    states = (ContainerStatus("c", 0, ContainerState(end)),) if end is not None else ()
    status = PodStatus(phase=phase, reason=reason, conditions=conditions, container_statuses=states)
    return Pod(ChildMetadata(name="p", uid="u"), status, PodSpec(node_name="n1"))


def ended(code: int, reason: str = "Error", message: str = "") -> Terminated:
    return Terminated(exit_code=code, reason=reason, message=message)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(reason="Evicted"), "Evicted"),
        (pod(reason="NodeLost"), "NodeLost"),
        (pod(reason="UnexpectedAdmissionError"), "UnexpectedAdmissionError"),
        (pod("Running", target="DeletionByTaintManager"), "DeletionByTaintManager"),
        (pod(target="TerminationByKubelet", end=ended(137)), "TerminationByKubelet"),
        (pod(target="DeletionByPodGC"), "DeletionByPodGC"),
        (pod("Running", target=" "), " "),
        (pod(target="PreemptionByScheduler"), ""),
        (pod(target="EvictionByEvictionAPI", reason="Evicted"), ""),
        (pod(reason="Preempting"), ""),
        (pod(reason="DeadlineExceeded"), ""),
        (pod(end=ended(1)), ""),
        (pod(end=ended(137, "OOMKilled")), ""),
        (
            pod(end=ended(128, "StartError", "failed to create shim task: nvidia-container-cli: error")),
            "StartError",
        ),
        (pod(end=ended(128, "StartError", 'exec: "trian": executable file not found in $PATH')), ""),
        (pod(end=ended(137, "ContainerStatusUnknown")), "ContainerStatusUnknown"),
        (pod(end=ended(1, message="RuntimeError: CUDA error: uncorrectable ECC error encountered")), "DeviceError"),
        (pod(end=ended(1, message="Unable to determine the device handle: GPU has fallen off the bus")), "DeviceError"),
        (pod(end=ended(1, message="CUDA out of memory")), ""),
        (pod(end=ended(0, "Completed")), ""),
        (pod("Running"), ""),
        (pod("Succeeded"), ""),
    ],
)
def test_what_speaks_against_a_node(found: Pod, why: str):
    assert find_fault(found) == why


def test_a_disruption_without_a_reason_has_a_name():
    status = PodStatus(phase="Running", conditions=(PodCondition("DisruptionTarget", "True"),))
    assert find_fault(Pod(status=status)) == "DisruptionTarget"


def test_pods_that_another_client_deletes_do_not_count():
    gone = ChildMetadata(name="p", uid="u", deletion_timestamp=format_time(NOW))
    failed = pod(end=ended(1, message="ECC error"))
    assert find_fault(Pod(gone, failed.status, failed.spec)) == ""


@pytest.mark.parametrize(
    ("reported", "asks", "counts"),
    [
        (None, "true", True),
        (-60.0, "true", True),
        (60.0, "true", False),
        (None, "false", False),
    ],
    ids=["never", "in an earlier run", "in this run", "it does not report"],
)
def test_a_program_that_fails_before_it_reports_speaks_against_its_node(
    reported: float | None, asks: str, counts: bool
):
    world = begin("PyTorchJob", bad_node_after="1", progress=asks)
    if reported is not None:
        world.status["trainerStatus"] = {"lastUpdatedTime": format_time(NOW + timedelta(seconds=reported))}
    for name, node in (("j-worker-1", "n1"), ("j-worker-0", "n2")):
        world.pods[name]["spec"]["nodeName"] = node
    world.pass_time(100)
    world.end("j-worker-1", 1)
    world.pass_time(1)
    world.end("j-worker-0", 1)  # because of the first
    settle(world)
    assert list(memory(world)) == (["n1"] if counts else [])
    assert not counts or memory(world)["n1"][2] == "NoProgress"


def test_pods_of_others_with_the_labels_of_the_job_do_not_count():
    world = begin("PyTorchJob", bad_node_after="1")
    stranger = json.loads(json.dumps(world.pods["j-worker-1"]))
    stranger["metadata"] |= {"name": "x", "uid": "x", "ownerReferences": []}
    stranger["spec"]["nodeName"] = "n9"
    world.pods["x"] = {**stranger, "status": {"phase": "Failed", "reason": "Evicted"}}
    for _ in range(3):
        decide(world)
    assert memory(world) == {}


def test_a_job_that_is_suspended_or_has_ended_notes_nothing():
    world = begin("PyTorchJob", bad_node_after="1")
    world.spec["runPolicy"] = {"suspend": True}
    settle(world)
    world.pods["j-worker-1"]["spec"]["nodeName"] = "n1"
    world.set_pod("j-worker-1", "Failed", reason="Evicted")
    settle(world)
    assert memory(world) == {}


# What the annotations ask for -----------------------------------------------------------------------------------------


def rule(**annotations: str) -> AvoidRule | None:
    return read_rule({f"trainop.kubeflow.org/{name.replace('_', '-')}": value for name, value in annotations.items()})


def test_rules():
    assert rule() is None
    assert rule(avoid_bad_nodes="always") is None
    assert rule(avoid_bad_nodes="required") == AvoidRule(True, 2, 6 * HOURS)
    given = rule(avoid_bad_nodes="preferred", bad_node_after="3", bad_node_for="30m")
    assert given == AvoidRule(False, 3, 1800)
    for wrong in ("0", "-1", "101", "1.5", "x", "9" * 50, ""):
        assert rule(avoid_bad_nodes="required", bad_node_after=wrong, bad_node_for="1s") == RULE


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"avoid_bad_nodes": "always"}, '"always" is ignored: it must be required or preferred'),
        ({"avoid_bad_nodes": "required", "bad_node_after": "many"}, '"many" counts as 2: it must be a whole number'),
        ({"avoid_bad_nodes": "required", "bad_node_for": "1s"}, '"1s" is ignored: it must be a duration from 1m'),
        ({"bad_node_for": "1h"}, 'bad-node-for]: "1h" is ignored without trainop.kubeflow.org/avoid-bad-nodes'),
        ({"bad_node_after": "3"}, 'bad-node-after]: "3" is ignored without trainop.kubeflow.org/avoid-bad-nodes'),
    ],
)
@pytest.mark.parametrize("kind", ["PyTorchJob", "MPIJob over ssh"])
def test_an_annotation_that_is_wrong_is_one_warning(kind: str, annotations: dict[str, str], words: str):
    world = WORLDS[kind](**annotations)
    start(world)
    settle(world)
    (text,) = [each.message for each in world.events if each.reason == "AnnotationIgnored"]
    assert words in text
    assert world.is_true("Running")


def test_for_dijobs_it_is_a_warning():
    world = WORLDS["DIJob"](avoid_bad_nodes="required")
    start(world)
    (text,) = world.event_messages("AnnotationIgnored")
    assert text.endswith(
        "[trainop.kubeflow.org/avoid-bad-nodes] is ignored: the operator does not restart jobs of this kind"
    )
    assert BAD_NODES not in world.raw["metadata"]["annotations"]


# What is remembered ---------------------------------------------------------------------------------------------------


def read(**fields: Any) -> BadNodes:
    return BadNodes(UID, {BAD_NODES: json.dumps({"job": UID, **fields})})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "[" * 100_000, '{"job":"x"}', '{"nodes":{"n1":[2,"2026-01-01T00:00:00Z","x"]}}']
)
def test_annotations_that_mean_nothing_are_empty(text: str):
    assert BadNodes(UID, {BAD_NODES: text}).nodes == {}


@pytest.mark.parametrize(
    "entry",
    [None, 3, [], [2, "soon", ""], [True, stamp(), ""], [0, stamp(), ""], [10**9, stamp(), ""], [2, stamp(), 3]],
)
def test_entries_that_mean_nothing_are_dropped(entry: Any):
    assert read(nodes={"n1": entry}).nodes == {}


@pytest.mark.parametrize("name", ["", "N1", "a b", "-a", "n" * 64, "ü"])
def test_names_that_are_no_labels_never_reach_a_pod(name: str):
    assert read(nodes={name: [2, format_time(NOW), "x"]}).nodes == {}
    found = read()
    found.count(Pod(ChildMetadata(uid="u"), spec=PodSpec(node_name=name)), "x", NOW)
    assert found.nodes == {}


def test_it_is_bounded():
    found = read()
    for index in range(3 * MAX_COUNTED):
        one = Pod(ChildMetadata(uid=f"u{index}"), spec=PodSpec(node_name=f"{'n' * 55}{index}"))
        found.count(one, "W" * 1000, NOW + timedelta(seconds=index))
    assert len(found.nodes) == MAX_NODES
    assert f"{'n' * 55}{MAX_COUNTED - 1}" in found.nodes  # the newest that counted
    text = found.text(f"u{index}" for index in range(3 * MAX_COUNTED)) or ""
    assert len(text) < 12_000
    again = BadNodes(UID, {BAD_NODES: text})
    assert again.nodes == found.nodes
    assert again.is_counted("u0")
    assert not BadNodes(UID, {BAD_NODES: found.text([]) or ""}).is_counted("u0")


def test_a_node_is_forgotten_after_its_time_whatever_the_clock_said():
    found = read(nodes={"n1": [2, format_time(NOW), "x"], "n2": [1, format_time(NOW), "x"]})
    assert list(found.avoided(RULE, NOW + timedelta(seconds=RULE.seconds - 1))) == ["n1"]
    assert found.avoided(RULE, NOW + timedelta(seconds=RULE.seconds)) == {}
    assert found.avoided(RULE, NOW - timedelta(days=365)) == {}
    assert [found.changed, found.forget(RULE, NOW + timedelta(seconds=RULE.seconds))] == [False, ["n1"]]
    assert (found.changed, found.text([])) == (True, None)


# The affinity of the template -----------------------------------------------------------------------------------------

MINE = {"key": "gpu", "operator": "In", "values": ["a100"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ALL = Avoidance(required=True, nodes=("n1", "n2"))
LIKE = Avoidance(required=False, nodes=("n1",))


def test_the_requirement_is_added_to_every_term_of_the_template():
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    terms = [{"matchExpressions": [MINE]}, fields, {}, {"matchExpressions": []}]
    pods = {"podAntiAffinity": {"x": 1}}
    spec = {"affinity": {**pods, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}, PREFERRED: [1]}}}
    before = json.dumps(spec)
    made = ALL.add_to(spec)["affinity"]
    assert json.dumps(spec) == before
    own = requirement("n1", "n2")
    assert made == pods | {
        "nodeAffinity": {
            REQUIRED: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [MINE, own]},
                    {**fields, "matchExpressions": [own]},
                    {},  # fulfils nothing, and would fulfil something with a requirement
                    {"matchExpressions": []},
                ]
            },
            PREFERRED: [1],
        }
    }


def test_a_preference_is_one_more():
    theirs = {"weight": 1, "preference": {"matchExpressions": [MINE]}}
    made = LIKE.add_to({"affinity": {"nodeAffinity": {PREFERRED: [theirs]}}})["affinity"]["nodeAffinity"][PREFERRED]
    assert made == [theirs, {"weight": 100, "preference": {"matchExpressions": [requirement("n1")]}}]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "n1"},
        {"affinity": 3},
        {"affinity": {"nodeAffinity": []}},
        {"affinity": {"nodeAffinity": {REQUIRED: 3}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": 3}}}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": 3}, 4]}}}},
    ],
)
def test_what_cannot_be_extended_is_left_to_the_api_server(spec: Json):
    assert ALL.add_to(spec) == spec


def test_a_preference_of_a_wrong_type_is_left():
    spec = {"affinity": {"nodeAffinity": {PREFERRED: 3}}}
    assert LIKE.add_to(spec) == spec


def test_without_nodes_a_pod_stays_as_it_is():
    spec: Json = {}
    assert Avoidance(required=True, nodes=()).add_to(spec) is spec


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([REQUIRED, PREFERRED, "nodeAffinity", "nodeSelectorTerms", "matchExpressions"]), inner
        )
    ),
    max_leaves=10,
)


@given(JSON, st.booleans())
def test_templates_of_any_shape(given: Any, required: bool):
    assert isinstance(Avoidance(required, ("n1",)).add_to({"affinity": given}), dict)


@given(st.text(max_size=30) | JSON.map(json.dumps))
def test_annotations_of_any_content(text: str):
    metadata = Metadata(name="j", uid=UID, annotations={AVOID_BAD_NODES: "required", BAD_NODES: text})
    assert read_avoidance(metadata, NOW) == Avoidance(required=True, nodes=())


def test_pods_are_the_only_objects_that_are_made_anew():
    world = begin("PyTorchJob", bad_node_after="1", bad_node_for="1h")
    lose(world, "j-worker-1", "n1")
    world.pass_time(HOURS)
    made = decide(world)
    assert {each.resource for each in made.actions if isinstance(each, Remove)} == {PODS}
