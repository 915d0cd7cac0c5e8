"""Progress that pods report, with the operator as a process on a real API server, which makes and reviews the tokens.

No kubelet runs: the tests make the tokens as it does for the projected volume of the pod, and read the CA certificates
from the annotation that the volume shows as a file.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import free_ports
from tests.server.conftest import NUMBERS
from tests.server.process import Operator
from tests.server.world import CORE, JOBS, Json, World, replicas

ANNOTATION = "trainop.kubeflow.org/progress"
SERVICE = "training-operator"
MakeJob: TypeAlias = Callable[..., Json]
HALF = {"progressPercentage": 50, "estimatedRemainingSeconds": 60, "metrics": [{"name": "loss", "value": "0.5"}]}


class Access(NamedTuple):
    """What a pod has to report with."""

    url: str
    token: str
    authority: str


class Installation:
    """An operator in a namespace of its own that takes reports."""

    def __init__(self, plane: ControlPlane, log: Path, *flags: str, world: World | None = None) -> None:
        (self.port,) = free_ports(1)
        self.world = world or World(plane.api, f"progress{next(NUMBERS)}")
        accounts, account = f"{CORE}/serviceaccounts", {"metadata": {"name": "default"}}
        self.world.try_to("POST", accounts, account)  # no kube-controller-manager may run
        self.host = f"{SERVICE}.{self.world.namespace}.svc"
        self.operator = Operator(
            log,
            f"--kubeconfig={plane.kubeconfig}",
            f"--progress-bind-address=127.0.0.1:{self.port}",
            *flags,
            environment={"MY_POD_NAMESPACE": self.world.namespace},
        )

    def access(self, pod: Json, **changes: Any) -> Access:
        """What the pod has, as a kubelet provides it."""
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "kubeflow-trainer-token")
        token, certificates = volume["projected"]["sources"]
        (item,) = certificates["downwardAPI"]["items"]
        variables = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        key = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
        return Access(
            variables["KUBEFLOW_TRAINER_SERVER_URL"],
            self.token(pod, **{"audience": token["serviceAccountToken"]["audience"], **changes}),
            pod["metadata"]["annotations"][key],
        )

    def token(self, pod: Json, *, audience: str, bound: bool = True) -> str:
        """A token as the kubelet asks for it."""
        reference = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec = {"audiences": [audience], "expirationSeconds": 3600, **({"boundObjectRef": reference} if bound else {})}
        made = self.world.ask("POST", f"{CORE}/serviceaccounts/default/token", {"spec": spec})
        return str(made["status"]["token"])

    def post(self, access: Access, body: bytes | Json, path: str | None = None) -> tuple[int, Json]:
        """Status and body of the answer, over a verified connection."""
        context = ssl.create_default_context(cadata=access.authority)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        with opened, context.wrap_socket(opened, server_hostname=self.host) as secured:
            connection = http.client.HTTPSConnection(self.host, self.port, context=context)
            connection.sock = secured
            headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
            connection.request("POST", path or "/apis/" + access.url.split("/apis/", 1)[1], data, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def installation(
    control_plane: ControlPlane, shared_operator: Operator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    if shared_operator.running:
        shared_operator.end()
    made = Installation(control_plane, tmp_path_factory.mktemp("progress") / "operator.log")
    made.operator.start()
    yield made
    made.operator.end()


def create_job(installation: Installation, name: str, progress: str | None = "true", **policy: Any) -> Json:
    """Creates a PyTorchJob with one master that may report, and returns its pod."""
    annotations = {} if progress is None else {ANNOTATION: progress}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": {"Master": replicas(1)}},
    }
    installation.world.ask("POST", JOBS, body)
    return installation.world.wait_pod(f"{name}-master-0")


@pytest.fixture
def make_job(installation: Installation) -> MakeJob:
    return partial(create_job, installation)


def shown(world: World, name: str) -> Json:
    """The report in the status, without its time, which the operator adds."""
    found: Json = world.status(name).get("trainerStatus", {})
    return {field: value for field, value in found.items() if field != "lastUpdatedTime"}


def report(percent: int) -> Json:
    return {"trainerStatus": {"progressPercentage": percent}}


def test_a_report_becomes_the_status_of_the_job(installation: Installation, make_job: MakeJob) -> None:
    world, pod = installation.world, make_job("told")
    access = installation.access(pod)
    assert installation.post(access, {"trainerStatus": HALF}) == (200, {"trainerStatus": HALF})
    world.wait(lambda: shown(world, "told") == HALF, "the report in the status")
    managers = {each["manager"]: each for each in world.job("told")["metadata"]["managedFields"]}
    assert managers["trainop-progress"]["operation"] == "Apply"
    fields = managers["trainop-progress"]["fieldsV1"]
    assert set(fields) == {"f:status"}
    assert set(fields["f:status"]) == {"f:trainerStatus"}


def test_the_last_report_is_written_although_the_job_has_ended(installation: Installation, make_job: MakeJob) -> None:
    world, pod = installation.world, make_job("last")
    access = installation.access(pod)
    for percent in range(101):
        assert installation.post(access, report(percent))[0] == 200
    world.set_pod("last-master-0", {"phase": "Succeeded"})
    world.wait(lambda: world.is_now("Succeeded", "last"), "the end of the job")
    world.wait(lambda: shown(world, "last") == {"progressPercentage": 100}, "the last report")
    assert world.is_now("Succeeded", "last")  # the writes kept the conditions of each other


def test_reports_of_one_job_are_merged(installation: Installation, make_job: MakeJob) -> None:
    world, pod = installation.world, make_job("merged")
    access, before = installation.access(pod), world.job("merged")
    began = time.monotonic()
    for percent in range(60):
        assert installation.post(access, report(percent))[0] == 200
    world.wait(lambda: shown(world, "merged") == {"progressPercentage": 59}, "the newest report")
    query = f"watch=1&timeoutSeconds=1&resourceVersion={before['metadata']['resourceVersion']}"
    lines = str(world.ask("GET", f"{JOBS}?{query}&fieldSelector=metadata.name=merged")).splitlines()
    seen = [json.loads(line)["object"]["status"].get("trainerStatus") for line in lines]
    written = [each for at, each in enumerate(seen) if each and each != seen[at - 1]]
    assert 1 <= len(written) <= 2 + (time.monotonic() - began) // 10, written  # one at once, then one per ten seconds


@pytest.mark.parametrize(
    ("row", "status", "message"),
    [
        ("none", 403, "no token of a pod"),
        ("text", 403, "no token of a pod"),
        ("of the API server", 403, "no token of a pod"),
        ("unbound", 403, "no token of a pod"),
        ("of another job", 403, "no token of a pod"),
        ("of a pod of another job", 403, "is not a pod of PyTorchJob"),
        ("forged", 403, "the token is not valid"),
        ("for no job", 404, '"nobody" not found'),
    ],
)
def test_who_may_not_report(installation: Installation, make_job: MakeJob, row: str, status: int, message: str) -> None:
    name = f"of-{row.replace(' ', '-').lower()}"
    pod, other = make_job(name), make_job(f"{name}-other")
    access, theirs = installation.access(pod), installation.access(other)
    audience = access.url.split("/apis/", 1)[1]
    head, _, signature = access.token.rpartition(".")
    token, path = {
        "none": ("", None),
        "text": ("secret", None),
        "of the API server": (installation.token(pod, audience="https://kubernetes.default.svc"), None),
        "unbound": (installation.token(pod, audience=audience, bound=False), None),
        "of another job": (theirs.token, None),
        "of a pod of another job": (installation.token(other, audience=audience), None),
        "forged": (f"{head}.{signature[::-1]}", None),
        "for no job": (
            installation.token(pod, audience=audience.replace(name, "nobody")),
            "/apis/" + audience.replace(name, "nobody"),
        ),
    }[row]
    answer, body = installation.post(access._replace(token=token), report(50), path)
    assert (answer, body["kind"], body["code"]) == (status, "Status", status)
    assert message in body["message"]
    assert installation.post(theirs, report(70))[0] == 200  # nobody else is hurt
    world = installation.world
    world.wait(lambda: shown(world, f"{name}-other") == {"progressPercentage": 70}, "the report of the other job")
    assert shown(world, name) == {}


def test_a_finished_job_takes_no_reports(installation: Installation, make_job: MakeJob) -> None:
    world, pod = installation.world, make_job("ended", cleanPodPolicy="None")
    access = installation.access(pod)
    world.set_pod("ended-master-0", {"phase": "Succeeded"})
    world.wait(lambda: world.is_now("Succeeded", "ended"), "the end of the job")
    world.wait(lambda: installation.post(access, report(99))[0] == 403, "a refusal")
    assert installation.post(access, report(99))[1]["message"].endswith("ended has finished")
    assert shown(world, "ended") == {}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 200),
        (b'{"trainerStatus": null, "other": 1}', 200),
        (b"", 422),
        (b"50 %", 422),
        (b'{"trainerStatus": {"progressPercentage": NaN}}', 422),
        (b'{"trainerStatus": {"progressPercentage": -1}}', 422),
        (b'{"trainerStatus": {"progressPercentage": 101}}', 422),
        (b'{"trainerStatus": {"estimatedRemainingSeconds": -1}}', 422),
        (b'{"trainerStatus": {"lastUpdatedTime": "yesterday"}}', 422),
        (b'{"trainerStatus": {"metrics": [{"name": "", "value": "1"}]}}', 422),
        (b'{"trainerStatus": {"metrics": [{"name": "loss", "value": 1}]}}', 422),
        (json.dumps({"trainerStatus": {"metrics": [{"name": "m", "value": "x" * 65}]}}).encode(), 422),
        (json.dumps({"trainerStatus": {"metrics": [{"name": "m", "value": "1"}] * 257}}).encode(), 422),
        (b"[" * 60_000, 422),
        (b" " * (64 * 1024 + 1), 413),
    ],
    ids=range(15),
)
def test_bodies(installation: Installation, bodies: Access, body: bytes, status: int) -> None:
    answer, said = installation.post(bodies, body)
    assert answer == status
    assert status == 200 or (said["kind"], said["code"]) == ("Status", status)
    assert shown(installation.world, "bodies") == {}


@pytest.fixture(scope="module")
def bodies(installation: Installation) -> Access:
    return installation.access(create_job(installation, "bodies", "true"))


def test_the_annotation_alone_decides(installation: Installation, make_job: MakeJob) -> None:
    for name, value in (("plain", None), ("off", "false"), ("odd", "yes")):
        pod = make_job(name, value)
        assert "volumes" not in pod["spec"] or "kubeflow" not in json.dumps(pod["spec"]["volumes"])
        assert "annotations" not in pod["metadata"]
    world = installation.world
    (event,) = world.wait(lambda: world.events("ProgressNotReported"), "a warning")
    assert event["involvedObject"]["name"] == "odd"
    assert '"yes" is ignored: it must be "true" or "false"' in event["message"]
