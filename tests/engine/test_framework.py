"""A kind is a value: features of the engine for kinds that differ from PyTorchJob."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tests.engine.builders import UID, conditions_of, make_pod, manifest_of, pod_created, replica, see, stamp, written
from tests.engine.world import World
from tests.upstream import KEEPS_LOG, Upstream
from trainop.engine.framework import JOB_ROLE, Framework, PodAdditions, Progress, Replicas, Tally, Texts, selector
from trainop.engine.job import Job, Role
from trainop.engine.parse import parse
from trainop.engine.plan import plan
from trainop.engine.seen import Options
from trainop.runtime.objects.metadata import Json, Resource, Unstructured


def follow_server(_job: Job, tallies: Mapping[str, Tally]) -> Progress:
    """Reports Running even for a server that ended before it was observed to run."""
    server = tallies["Server"]
    return Progress(running=server.active + server.succeeded > 0, succeeded=server.succeeded > 0)


def name_replica(role: Role, index: int) -> Sequence[Json]:
    return [{"name": "ME", "value": f"{role.label}-{index}"}]


TOY = Framework(
    resource=Resource("example.com", "v1", "toyjobs", "ToyJob"),
    name="toy",
    controller="toyjob-controller",
    replica_specs="toyReplicaSpecs",
    roles={"Server": Replicas(), "Worker": Replicas()},
    required_roles=("Server",),
    container="toy",
    port_name="toy-port",
    port=1000,
    is_master=lambda _job, role, index: role.type == "Server" and index == 0,
    needs_service=lambda _job, _role, _index: False,
    additions=lambda _job, _options: PodAdditions(name_replica, in_all_containers=False),
    progress=follow_server,
    tolerates=lambda _job, role, _tally: role.type == "Worker",
    texts=lambda _job: Texts(running="{kind} {namespace}/{name} runs.", failed="{count} of {role} failed"),
)


def toy(server: int | None = 1, worker: int = 1, **spec: Any) -> Json:
    tmpl = {"spec": {"containers": [{"name": "side", "image": "i"}, {"name": "toy", "image": "i"}]}}
    roles = {"Worker": replica(worker, tmpl=tmpl)}
    if server is not None:
        roles["Server"] = replica(server, tmpl=tmpl)
    return {
        "metadata": {"name": "j", "namespace": "ns", "uid": UID},
        "spec": {"toyReplicaSpecs": roles, **spec},
    }


def toy_pod(*args: Any, **fields: Any) -> Any:
    pod = make_pod(*args, **fields)
    role, index = pod.metadata.name.split("-")[1:]
    labels = {
        **selector(TOY, "j"),
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": index,
    }
    return make_pod(*args, labels=labels, **fields)


def test_children_come_in_the_order_of_the_kinds_roles_and_bear_its_name():
    made = plan(TOY, see(toy()))
    pods = [manifest_of(action) for action in made.actions if pod_created(action)]
    assert [pod["metadata"]["name"] for pod in pods] == ["j-server-0", "j-worker-0"]
    assert [pod["metadata"]["labels"].get(JOB_ROLE) for pod in pods] == ["master", None]
    assert pods[0]["metadata"]["ownerReferences"][0]["apiVersion"] == "example.com/v1"
    assert pods[0]["metadata"]["labels"]["training.kubeflow.org/operator-name"] == "toyjob-controller"
    assert pods[0]["spec"]["restartPolicy"] == "Never"


def test_variables_may_be_for_the_frameworks_container_alone():
    made = plan(TOY, see(toy()))
    side, main = next(manifest_of(a) for a in made.actions if pod_created(a))["spec"]["containers"]
    assert side == {"name": "side", "image": "i", **KEEPS_LOG}
    assert main["env"] == [{"name": "ME", "value": "server-0"}]
    assert main["ports"] == [{"name": "toy-port", "containerPort": 1000}]


def test_a_kind_without_variables_leaves_env_alone():
    bare = dataclasses.replace(TOY, additions=lambda _job, _options: PodAdditions())
    made = plan(bare, see(toy()))
    _, main = next(manifest_of(a) for a in made.actions if pod_created(a))["spec"]["containers"]
    assert "env" not in main


def test_a_required_role_must_be_there():
    (error,) = parse(TOY, Unstructured(toy(None))).errors
    assert str(error) == "spec.toyReplicaSpecs[Server]: Required value: must be present"


def test_counts_below_zero_are_never_allowed_and_zero_is_where_the_kind_says_so():
    (error,) = parse(TOY, Unstructured(toy(-1))).errors
    assert str(error).endswith("[Server].replicas: Invalid value: -1: must be greater than or equal to 0")
    world = World(toy(1, 0), framework=TOY)
    world.settle()
    assert sorted(world.pods) == sorted(world.services) == ["j-server-0"]


def test_success_without_ever_having_been_seen_running():
    made = plan(TOY, see(toy(1, 1), [toy_pod("server", phase="Succeeded")]))
    assert conditions_of(made.status) == [
        ("Created", "True", "ToyJobCreated"),
        ("Running", "False", "ToyJobRunning"),
        ("Succeeded", "True", "ToyJobSucceeded"),
    ]
    assert written(made)["conditions"][1]["message"] == "ToyJob ns/j runs."
    assert written(made)["replicaStatuses"] == {"Server": {"succeeded": 1}, "Worker": {}}
    assert written(made)["completionTime"] == stamp()


def test_failures_may_be_tolerated():
    world = World(toy(1, 2), framework=TOY)
    world.settle()
    world.run()
    world.end("j-worker-1", 1)
    world.settle()
    assert world.is_true("Running")
    world.end("j-server-0", 1)
    world.settle()
    assert world.status["conditions"][-1]["message"] == Upstream("1 of Server failed")


def test_service_mode_leader_with_a_kind_whose_rendezvous_needs_none():
    world = World(toy(), framework=TOY, options=Options(service_mode="leader"))
    world.settle()
    assert (len(world.pods), len(world.services)) == (2, 0)


def test_an_exit_code_is_that_of_the_frameworks_container():
    job = toy()
    job["spec"]["toyReplicaSpecs"]["Server"]["restartPolicy"] = "ExitCode"
    states = [
        {"name": "side", "state": {"terminated": {"exitCode": 137}}},
        {"name": "toy", "state": {"terminated": {"exitCode": 1}}},
    ]
    made = plan(TOY, see(job, [toy_pod("server", phase="Failed", status={"containerStatuses": states})]))
    assert conditions_of(made.status)[-1] == ("Failed", "True", "ToyJobFailed")
    states[1]["state"] = {}
    made = plan(TOY, see(job, [toy_pod("server", phase="Failed", status={"containerStatuses": states})]))
    assert conditions_of(made.status)[-1] == ("Restarting", "True", "ToyJobRestarting")


def test_first_completed_is_of_index_zero_whether_it_stays_or_goes():
    def first(*pods: Any) -> bool:
        seen: list[Tally] = []

        def watch(_job: Job, tallies: Mapping[str, Tally]) -> Progress:
            seen.append(tallies["Worker"])
            return Progress(running=False, succeeded=False)

        plan(dataclasses.replace(TOY, progress=watch), see(toy(0, 2), pods))
        return seen[0].first_completed  # later calls ask about pods that do not exist

    def ended(code: int, name: str = "toy") -> Json:
        return {"containerStatuses": [{"name": name, "state": {"terminated": {"exitCode": code}}}]}

    assert first(toy_pod("worker", 0, phase="Succeeded", status=ended(0)))
    assert first(toy_pod("worker", 0, phase="Succeeded", dying=True, status=ended(0)))
    assert not first(toy_pod("worker", 1, phase="Succeeded", status=ended(0)))
    assert not first(toy_pod("worker", 0, status=ended(0))), "another container still runs"
    assert not first(toy_pod("worker", 0, phase="Succeeded", status=ended(1)))
    assert not first(toy_pod("worker", 0, phase="Succeeded", status=ended(0, "side")))
    assert not first(toy_pod("worker", 0, phase="Succeeded")), "nothing is known of its containers"
    assert not first()


def test_roles_know_their_label():
    assert Role("PS", 1, "Never", {}).label == "ps"
