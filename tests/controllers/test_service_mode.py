"""Service mode `job`: one Service for all replicas of a job, in every kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.controllers.kinds import KINDS, SHAPES, line, make, pods_of, running, services_of
from tests.engine.builders import replica_created, service_deleted
from tests.engine.world import World
from trainop.engine.addresses import find_obstacle
from trainop.engine.admission import judge
from trainop.engine.extensions import SERVICE_MODE
from trainop.engine.framework import JOB_NAME, OPERATOR_NAME
from trainop.engine.job import Port
from trainop.engine.manifests import service_ports
from trainop.engine.parse import parse
from trainop.engine.plan import plan
from trainop.engine.seen import Options
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured

JOB = {SERVICE_MODE: "job"}
REPLICA = {SERVICE_MODE: "replica"}
SEARCH = "j-pods.ns.svc.cluster.local"

every_kind = pytest.mark.parametrize("kind", KINDS)


def resolve(word: str, pod: Json, pods: Iterable[Json], services: Mapping[str, Json]) -> list[str]:
    """The pods that a name means in `pod`, by the specification of Kubernetes DNS: with `ndots:5` each search domain is
    tried first, and a headless Service has records for itself and for the host names of its pods."""
    spec = pod["spec"]
    searches = ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local"]
    for domain in [*searches, *spec.get("dnsConfig", {}).get("searches", ())]:
        full = f"{word}.{domain}"
        for name, service in services.items():
            zone = f"{name}.ns.svc.cluster.local"
            selected = [
                each for each in pods if service["spec"]["selector"].items() <= each["metadata"]["labels"].items()
            ]
            if full == zone:
                return [each["metadata"]["name"] for each in selected]
            found = [each for each in selected if full == f"{each['spec'].get('hostname')}.{zone}"]
            if found and all(each["spec"]["subdomain"] == name for each in found):
                return [each["metadata"]["name"] for each in found]
    return []


@every_kind
@pytest.mark.parametrize("mode", ["replica", "job"])
def test_all_addresses_in_the_environment_resolve_everywhere(kind: str, mode: str):
    job = make(kind, annotations={SERVICE_MODE: mode})
    pods, services = pods_of(job), services_of(job)
    words = set(re.findall(r"\bj-[a-z]+-[0-9]+[-a-z.]*", " ".join(map(line, pods.values()))))
    assert words, "the environment contains addresses"
    for word in words | pods.keys():
        for pod in pods.values():
            assert resolve(word, pod, pods.values(), services) == [word.partition(".")[0]]


@every_kind
def test_a_job_has_one_service_that_selects_all_its_pods(kind: str):
    job = make(kind, annotations=JOB)
    labels = {OPERATOR_NAME: f"{kind.lower()}-controller", JOB_NAME: "j"}
    framework = FRAMEWORKS[kind]
    ((name, service),) = services_of(job).items()
    assert name == service["metadata"]["name"] == "j-pods"
    assert service["metadata"]["labels"] == labels
    assert service["metadata"]["ownerReferences"][0]["uid"] == "uid-j"
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": framework.port_name, "port": framework.port}],
    }
    pods = pods_of(job)
    assert len(pods) == sum(SHAPES[kind].values())
    for pod_name, pod in pods.items():
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (pod_name, "j-pods")
        assert pod["spec"]["dnsConfig"] == {"searches": [SEARCH]}


@every_kind
def test_only_names_differ_from_the_pods_of_the_other_modes(kind: str):
    """TF_CONFIG states the namespace of each address, and with it the Service."""
    plain, shared = pods_of(make(kind)), pods_of(make(kind), service_mode="job")
    for pod in shared.values():
        for field in ("hostname", "subdomain", "dnsConfig"):
            del pod["spec"][field]
    text = str(shared).replace(".j-pods.ns.svc:", ".ns.svc:")
    assert text == str(plain)
    assert (".j-pods.ns.svc:" in str(shared)) == (kind == "TFJob")


@every_kind
def test_flag_and_annotation(kind: str):
    assert list(services_of(make(kind), service_mode="job")) == ["j-pods"]
    assert list(services_of(make(kind, annotations=JOB), service_mode="leader")) == ["j-pods"]
    own = services_of(make(kind, annotations=REPLICA), service_mode="job")
    assert sorted(own) == sorted(pods_of(make(kind)))


def test_the_domain_of_the_cluster():
    (pod,) = pods_of(make("JAXJob", {"Worker": 1}, annotations=JOB), mpi_cluster_domain="my.domain").values()
    assert pod["spec"]["dnsConfig"]["searches"] == ["j-pods.ns.svc.my.domain"]
    pod, _ = pods_of(make("TFJob", {"Worker": 2}, annotations=JOB), cluster_domain="tf.org").values()
    assert pod["spec"]["dnsConfig"]["searches"] == ["j-pods.ns.svc.tf.org"]
    assert '"j-worker-1.j-pods.ns.svc.tf.org:2222"' in line(pod)


def test_the_users_own_dns_settings_are_kept():
    given = {"nameservers": ["1.1.1.1"], "searches": ["example.com", SEARCH], "options": [{"name": "ndots"}]}
    job = make("JAXJob", annotations=JOB, template={"dnsConfig": given, "dnsPolicy": "ClusterFirst"})
    for pod in pods_of(job).values():
        assert pod["spec"]["dnsConfig"] == {**given, "searches": ["example.com", SEARCH]}


def test_a_pod_in_the_network_of_its_node_can_use_the_dns_of_the_cluster():
    host = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    assert list(services_of(make("JAXJob", annotations=JOB, template=host))) == ["j-pods"]


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([Port(2222, "a"), Port(3333, "a")], [("a", 2222), ("port-3333", 3333)]),
        ([Port(2222, "a"), Port(2222, "b"), Port(2222, "a")], [("a", 2222)]),
        ([Port(1, "port-2"), Port(2, "")], [("port-2", 1)]),
        ([Port(1, "x"), Port(2, "x"), Port(3, "port-2")], [("x", 1), ("port-2", 2), ("port-3", 3)]),
    ],
)
def test_the_ports_of_all_roles_have_different_names(ports: list[Port], expected: list[tuple[str, int]]):
    assert [(each["name"], each["port"]) for each in service_ports(tuple(ports))] == expected


# Jobs that cannot have the mode ---------------------------------------------------------------------------------------


def searches(count: int, length: int = 10) -> Json:
    return {"dnsConfig": {"searches": [f"{number:0{length}}" for number in range(count)]}}


@pytest.mark.parametrize(
    ("template", "field", "reason"),
    [
        ({"hostname": "h"}, "hostname", "the host name of each pod has to be the name of the pod"),
        ({"subdomain": "s"}, "subdomain", "the host name of each pod"),
        ({"setHostnameAsFQDN": True}, "setHostnameAsFQDN", "the host name of each pod"),
        ({"dnsPolicy": "None"}, "dnsPolicy", "only with ClusterFirst and ClusterFirstWithHostNet"),
        ({"dnsPolicy": "Default"}, "dnsPolicy", "only with ClusterFirst and"),
        ({"dnsPolicy": ["x" * 10_000]}, "dnsPolicy", "only with ClusterFirst and"),
        ({"hostNetwork": True}, "hostNetwork", "only with dnsPolicy ClusterFirstWithHostNet"),
        ({"dnsConfig": "x"}, "dnsConfig", "must have a list of search domains"),
        ({"dnsConfig": {"searches": "x"}}, "dnsConfig", "must have a list of search domains"),
        ({"dnsConfig": {"searches": [1]}}, "dnsConfig", "must have a list of search domains"),
        (searches(29), "dnsConfig.searches", "at most 32 search domains and 2048 characters"),
        (searches(10, 200), "dnsConfig.searches", "at most 32 search domains and 2048 characters"),
    ],
)
@every_kind
def test_a_job_that_cannot_have_the_mode_uses_one_service_per_replica(
    kind: str, template: Json, field: str, reason: str
):
    world = running(kind, annotations=JOB, template=template)
    assert sorted(world.services) == sorted(world.pods)
    (text,) = world.event_messages("ServiceModeNotPossible")
    role = next(each for each in FRAMEWORKS[kind].roles if each in SHAPES[kind])
    at = f"spec.{FRAMEWORKS[kind].replica_specs}[{role}].template.spec.{field}"
    assert text.startswith(f"service-mode job is not possible, so the job uses replica: {at}: ")
    assert reason in text
    plain = pods_of(make(kind, template=template))
    assert {name: pod["spec"] for name, pod in world.pods.items()} == {name: pod["spec"] for name, pod in plain.items()}
    found = judge(FRAMEWORKS[kind], Unstructured(make(kind, annotations=JOB, template=template)))
    assert (found.errors, found.warnings) == ((), (text,))


@pytest.mark.parametrize("name", ["1j", "j" * 59])
def test_a_job_whose_service_would_have_no_valid_name(name: str):
    job = parse(FRAMEWORKS["PyTorchJob"], Unstructured(make("PyTorchJob", name=name)))
    text = find_obstacle(FRAMEWORKS["PyTorchJob"], job, Options())
    assert text == f"metadata.name: {name}-pods is no valid name of a Service"


def test_a_role_without_a_valid_template_is_no_obstacle():
    raw = make("PyTorchJob")
    for role in raw["spec"]["pytorchReplicaSpecs"].values():
        role["template"] = "x"
    job = parse(FRAMEWORKS["PyTorchJob"], Unstructured(raw))
    assert find_obstacle(FRAMEWORKS["PyTorchJob"], job, Options()) == ""


@pytest.mark.parametrize(
    "template", [searches(28), searches(9, 200), {"dnsConfig": {}}, {"hostname": "", "dnsPolicy": ""}]
)
def test_what_is_just_possible(template: Json):
    job = make("PyTorchJob", annotations=JOB, template=template)
    assert list(services_of(job)) == ["j-pods"]
    assert judge(FRAMEWORKS["PyTorchJob"], Unstructured(job)).warnings == ()


def test_no_other_mode_is_a_reason_for_a_warning():
    world = running("PyTorchJob", annotations=REPLICA, template={"hostname": "h"})
    assert world.event_messages("ServiceModeNotPossible") == []


def test_the_longest_names():
    """The name of the Service has room wherever those of the pods have."""
    name = "j" * 58
    ((service, _),) = services_of(make("TFJob", {"PS": 2}, name=name, annotations=JOB)).items()
    assert len(service) == 63
    begun = make("TFJob", {"PS": 11}, name=name, annotations=JOB)
    begun["status"] = {"startTime": "2025-06-01T11:00:00Z"}
    world = World(begun, framework=FRAMEWORKS["TFJob"])
    world.settle()
    (text,) = world.event_messages("ServiceModeNotPossible")
    assert text.endswith(f"metadata.name: {name}-ps-10 has more than the 63 characters of a host name")


# Switching ------------------------------------------------------------------------------------------------------------


def switch(world: World, mode: str | None) -> None:
    annotations = world.raw["metadata"]["annotations"]
    annotations.pop(SERVICE_MODE, None)
    if mode:
        annotations[SERVICE_MODE] = mode


def states(world: World) -> tuple[dict[str, str], dict[str, str]]:
    """UIDs of pods and of services, by name."""
    return tuple({n: each["metadata"]["uid"] for n, each in t.items()} for t in (world.pods, world.services))  # type: ignore[return-value]


@every_kind
@pytest.mark.parametrize("flag", [False, True], ids=["annotation", "flag"])
@pytest.mark.parametrize(
    ("before", "after"), [("replica", "job"), ("leader", "job"), ("job", "replica"), ("job", "leader")]
)
def test_switching_a_running_job_keeps_its_pods_and_their_names(kind: str, before: str, after: str, flag: bool):
    world = running(kind, annotations={} if flag else {SERVICE_MODE: before}, options=Options(service_mode=before))
    pods, services = states(world)
    if flag:
        world.options = Options(service_mode=after)
    else:
        switch(world, after)
    world.settle()
    assert states(world)[0] == pods
    assert services.items() <= states(world)[1].items()
    name = list(pods)[-1]
    world.delete(name)
    world.reap()
    world.settle()
    named = [pod["spec"].get("subdomain") for pod in world.pods.values()]
    assert named == ["j-pods" if before == "job" else None] * len(pods)
    assert sorted(world.services) == (["j-pods"] if before == "job" else sorted(pods))


@every_kind
@pytest.mark.parametrize(("before", "after"), [("replica", "job"), ("job", "replica")])
@pytest.mark.parametrize("by", ["suspension", "restart"])
def test_the_new_mode_begins_when_no_pod_is_left(kind: str, before: str, after: str, by: str):
    annotations = {SERVICE_MODE: before, "trainop.kubeflow.org/restart-scope": "job"}
    world = running(kind, annotations=annotations, policy="OnFailure")
    switch(world, after)
    if by == "suspension":
        world.spec["runPolicy"] = {"suspend": True}
        world.settle()
        world.reap()
        world.settle()
        assert world.services == {}
        world.spec["runPolicy"] = {"suspend": False}
        world.settle()
    else:
        world.end(list(world.pods)[-1], 137)
        world.settle()
        assert sorted(world.services) == (["j-pods"] if before == "job" else sorted(world.pods)), "the old pods end"
        world.reap()
        world.settle()
    assert len(world.pods) == sum(SHAPES[kind].values())
    assert sorted(world.services) == (["j-pods"] if after == "job" else sorted(world.pods))
    assert {pod["spec"].get("subdomain") for pod in world.pods.values()} == {"j-pods" if after == "job" else None}


def test_an_edit_of_the_template_does_not_take_names_away():
    world = running("JAXJob", annotations=JOB)
    world.spec["jaxReplicaSpecs"]["Worker"]["template"]["spec"]["hostname"] = "mine"
    world.delete("j-worker-1")
    world.reap()
    world.settle()
    assert world.pods["j-worker-1"]["spec"]["hostname"] == "j-worker-1"


def test_an_obsolete_service_that_terminates_is_not_deleted_again():
    world = running("JAXJob", annotations=JOB)
    switch(world, "replica")
    for pod in list(world.pods):
        world.delete(pod)
    world.reap()
    world.services["j-pods"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    made = plan(world.framework, world.snapshot()).actions
    assert [each for each in made if service_deleted(each)] == []


def test_services_of_replicas_stay_while_a_pod_depends_on_them():
    """A user may create the pod of a slot, and an older operator creates pods without the names of the mode."""
    world = running("JAXJob")
    switch(world, "job")
    world.pods["j-worker-0"]["spec"] |= {"hostname": "j-worker-0", "subdomain": "j-pods"}
    world.settle()
    assert sorted(world.services) == ["j-pods", "j-worker-0", "j-worker-1", "j-worker-2"]
    for name in ("j-worker-1", "j-worker-2"):
        world.delete(name)
    world.reap()
    world.settle()
    assert sorted(world.services) == ["j-pods"]


# The life of the service ----------------------------------------------------------------------------------------------


@every_kind
def test_a_deleted_service_is_made_again(kind: str):
    world = running(kind, annotations=JOB)
    pods, _ = states(world)
    world.services.clear()
    world.settle()
    assert list(world.services) == ["j-pods"]
    assert states(world)[0] == pods


@pytest.mark.parametrize("kind", ["PyTorchJob", "JAXJob", "PaddleJob"])
def test_scaling_leaves_the_service_alone(kind: str):
    world = running(kind, annotations=JOB)
    _, services = states(world)
    for count in (5, 1, 0, 2):
        world.spec[FRAMEWORKS[kind].replica_specs]["Worker"]["replicas"] = count
        world.settle()
        world.reap()
        world.settle()
        assert states(world)[1] == services
        assert all(pod["spec"]["hostname"] == name for name, pod in world.pods.items())
        world.run()


@every_kind
@pytest.mark.parametrize(("policy", "kept"), [("None", True), ("Running", True), ("All", False)])
def test_the_service_goes_with_the_last_pod_of_a_finished_job(kind: str, policy: str, kept: bool):
    world = running(kind, annotations=JOB, run={"cleanPodPolicy": policy})
    for name in world.pods:
        world.end(name, 0)
    world.settle()
    world.reap()
    world.settle()
    assert world.is_true("Succeeded")
    assert (list(world.services), bool(world.pods)) == (["j-pods"] if kept else [], kept)


def test_the_service_goes_if_the_policy_keeps_no_pod():
    world = running("PyTorchJob", annotations=JOB, run={"cleanPodPolicy": "Running", "activeDeadlineSeconds": 5})
    world.pass_time(10)
    world.settle()
    assert world.is_true("Failed")
    assert world.services == {}


@pytest.mark.parametrize(
    ("change", "adopted"),
    [
        ({}, True),
        ({"name": "j-other"}, False),
        ({"creationTimestamp": "2020-01-01T00:00:00Z"}, False),
        ({"labels": {"training.kubeflow.org/replica-index": "0"}}, False),
    ],
)
def test_a_service_without_owner_is_adopted_under_the_rules_for_replicas(change: Json, adopted: bool):
    world = running("JAXJob", annotations=JOB)
    world.raw["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    service = world.services.pop("j-pods")
    metadata: dict[str, Any] = service["metadata"]
    del metadata["ownerReferences"]
    metadata |= {**change, "labels": metadata["labels"] | change.get("labels", {})}
    world.services[metadata["name"]] = service
    world.settle()
    assert ("ownerReferences" in service["metadata"]) == adopted
    if not adopted and metadata["name"] == "j-pods":
        taken = "Error creating: Service j-pods already exists and does not belong to JAXJob j"
        assert world.event_messages("FailedCreateService") == [taken]


def test_the_service_is_the_first_object_of_the_job():
    made = World(make("PyTorchJob", annotations=JOB)).step()
    assert [action.name for action in made.actions if replica_created(action)] == [
        "j-pods",
        "j-master-0",
        "j-worker-0",
        "j-worker-1",
    ]
