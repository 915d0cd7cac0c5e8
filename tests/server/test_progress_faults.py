"""Progress while the operator has a standby, is restarted, changes its CA, or writes to upstream's CRDs."""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import wait_until
from tests.patience import PATIENCE
from tests.server.process import Operator
from tests.server.test_election import LEASE, holder
from tests.server.test_progress import Access, Installation, create_job, report, shown
from tests.server.world import CORE, Json, World, replicas
from trainop.runtime.webhook.certificates import make_authority

MakeInstallation = Callable[..., Installation]
AUTHORITY = ("training-operator-ca", "training-operator")
"""Common name and organization of the operator's own CA."""
SECRET = "training-operator-webhook-cert"


@pytest.fixture
def make_installation(
    control_plane: ControlPlane, shared_operator: Operator, tmp_path: Path
) -> Iterator[MakeInstallation]:
    if shared_operator.running:
        shared_operator.end()
    made: list[Installation] = []

    def make(*flags: str, beside: Installation | None = None) -> Installation:
        world = beside.world if beside else None
        made.append(Installation(control_plane, tmp_path / f"operator-{len(made)}.log", *flags, world=world))
        made[-1].operator.start()
        return made[-1]

    yield make
    for each in made:
        if each.operator.running:
            each.operator.end()


def test_a_standby_takes_reports_and_writes_them(make_installation: MakeInstallation) -> None:
    first = make_installation("--leader-elect")
    assert wait_until(lambda: bool(holder(first.world)), PATIENCE)
    standby = make_installation("--leader-elect", beside=first)
    world, access = first.world, first.access(create_job(first, "j"))
    assert standby.post(access, report(40))[0] == 200
    world.wait(lambda: shown(world, "j") == {"progressPercentage": 40}, "the report to the standby")
    assert standby.operator.metric(f'leader_election_master_status{{name="{LEASE}"}}') == 0
    written = 'trainop_progress_writes_total{result="written"}'
    assert (first.operator.metric(written), standby.operator.metric(written)) == (0, 1)
    # The leader's status write keeps it, and its own writer counts the other's write.
    assert first.post(access, report(60))[0] == 200
    world.set_pod("j-master-0", {"phase": "Running"})
    world.wait(lambda: world.is_now("Running", "j"), "the status of the leader")
    world.wait(lambda: shown(world, "j") == {"progressPercentage": 60}, "the report to the leader")
    assert world.is_now("Running", "j")


def test_what_was_taken_is_written_although_the_operator_ends_and_clients_go_on(
    make_installation: MakeInstallation,
) -> None:
    installation = make_installation()
    world, access = installation.world, installation.access(create_job(installation, "j"))
    for percent in (10, 20):  # the second one would wait for ten seconds
        assert installation.post(access, report(percent))[0] == 200
    assert installation.operator.end() == 0
    assert shown(world, "j") == {"progressPercentage": 20}
    with pytest.raises(OSError, match="refused"):
        installation.post(access, report(30))
    installation.operator.start()
    assert installation.post(access, report(40))[0] == 200, "token and certificates of the running pod are good"
    world.wait(lambda: shown(world, "j") == {"progressPercentage": 40}, "the report after the restart")


def test_neither_a_namesake_in_another_namespace_nor_a_former_pod_reports(
    make_installation: MakeInstallation, control_plane: ControlPlane
) -> None:
    installation = make_installation()
    world, pod = installation.world, create_job(installation, "j")
    access = installation.access(pod)
    audience = access.url.split("/apis/", 1)[1]
    elsewhere = World(control_plane.api, f"{world.namespace}-elsewhere")
    elsewhere.try_to("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "default"}})
    alone = {"serviceAccountName": "default", "containers": [{"name": "pytorch", "image": "none"}]}
    namesake = {"metadata": {"name": "j-master-0"}, "spec": alone}
    made = elsewhere.ask("POST", f"{CORE}/pods", namesake)
    reference = {"kind": "Pod", "apiVersion": "v1", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    spec = {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": reference}
    token = elsewhere.ask("POST", f"{CORE}/serviceaccounts/default/token", {"spec": spec})["status"]["token"]
    answer, said = installation.post(access._replace(token=token), report(50))
    assert answer == 403
    assert said["message"].startswith(f"no token of a pod of {world.namespace}/j")
    assert installation.post(access, report(10))[0] == 200
    world.ask("DELETE", f"{CORE}/pods/j-master-0?gracePeriodSeconds=0")
    successor = world.wait_successor("j-master-0", pod["metadata"]["uid"])
    world.wait(lambda: installation.post(access, report(90))[0] == 403, "a refusal of the former pod")
    assert installation.post(installation.access(successor), report(20))[0] == 200
    world.wait(lambda: shown(world, "j") == {"progressPercentage": 20}, "the report of the new pod")


def test_no_report_fails_while_the_ca_is_replaced(make_installation: MakeInstallation) -> None:
    """The pod read `ca.crt` once, as transformers and the SDK do."""
    installation = make_installation()
    world, access = installation.world, installation.access(create_job(installation, "old"))
    path, before = f"{CORE}/secrets/{SECRET}", presented(installation)
    following = make_authority(*AUTHORITY, datetime.now(UTC))
    encoded = {
        "next-ca.crt": base64.b64encode(following.certificate).decode(),
        "next-ca.key": base64.b64encode(following.key).decode(),
    }
    world.ask("PATCH", path, {"data": encoded}, "application/merge-patch+json")
    answers = [installation.post(access, report(1))[0]]
    deadline = time.monotonic() + PATIENCE
    while presented(installation) == before:
        assert time.monotonic() < deadline, installation.operator.text()
        answers.append(installation.post(access, report(len(answers) % 100))[0])
    answers += [installation.post(access, report(99))[0] for _ in range(3)]
    assert set(answers) == {200}
    secret = world.ask("GET", path)
    assert base64.b64decode(secret["data"]["ca.crt"]) == following.certificate
    newer = installation.access(create_job(installation, "new"))
    assert following.certificate.decode().strip() in newer.authority
    only_new = Access(newer.url, newer.token, following.certificate.decode())
    assert installation.post(only_new, report(5))[0] == 200


def presented(installation: Installation) -> bytes:
    """The certificate that the endpoint shows to a new client."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", installation.port), timeout=30) as opened,
        context.wrap_socket(opened, server_hostname=installation.host) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


@pytest.fixture
def crd_without_field(control_plane: ControlPlane) -> Iterator[str]:
    """The CRD of PaddleJobs without `status.trainerStatus`, as upstream's."""
    name = "paddlejobs.kubeflow.org"
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    place = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/trainerStatus"
    columns = "/spec/versions/0/additionalPrinterColumns"
    before: Json = control_plane.api("GET", path).body
    version = before["spec"]["versions"][0]
    field = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["trainerStatus"]
    plain = [each for each in version["additionalPrinterColumns"] if "trainerStatus" not in each["jsonPath"]]

    def change(*operations: Json) -> None:
        answer = control_plane.api("PATCH", path, list(operations), "application/json-patch+json")
        assert answer.status == 200, answer.body

    change({"op": "remove", "path": place}, {"op": "replace", "path": columns, "value": plain})
    yield name
    change(
        {"op": "add", "path": place, "value": field},
        {"op": "replace", "path": columns, "value": version["additionalPrinterColumns"]},
    )


def test_a_crd_without_the_field_is_one_warning_and_the_job_runs(
    make_installation: MakeInstallation, crd_without_field: str
) -> None:
    installation = make_installation()
    world = installation.world
    jobs = f"/apis/kubeflow.org/v1/namespaces/{world.namespace}/paddlejobs"
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "j", "annotations": {"trainop.kubeflow.org/progress": "true"}},
        "spec": {"paddleReplicaSpecs": {"Worker": replicas(1, container={"name": "paddle"})}},
    }
    world.ask("POST", jobs, body)
    pod = world.wait_pod("j-worker-0")
    access = installation.access(pod)
    for percent in range(5):
        assert installation.post(access, report(percent))[0] == 200
    events = world.wait(lambda: world.events("ProgressNotReported"), "a warning")
    assert [(each["involvedObject"]["name"], each["type"]) for each in events] == [("j", "Warning")]
    assert f"the CRD {crd_without_field} has no field status.trainerStatus" in events[0]["message"]
    world.set_pod("j-worker-0", {"phase": "Succeeded"})
    world.wait(
        lambda: any(
            each["type"] == "Succeeded"
            for each in (world.ask("GET", f"{jobs}/j").get("status") or {}).get("conditions", ())
        ),
        "the end of the job",
    )
    world.wait_events("ProgressNotReported")
