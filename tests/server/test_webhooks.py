"""What users see of the admission webhooks: the operator process is called by a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.runtime.authority import cert_controller_pairs, secret_data
from tests.server.conftest import NUMBERS
from tests.server.kinds import ROWS, KindWorld
from tests.server.process import Operator
from tests.server.webhooks import (
    CONFIGURATIONS,
    DENIED,
    JSON_PATCH,
    NAME,
    Answered,
    Webhooks,
    try_job,
)
from tests.server.world import JOBS, MERGE, Json, World, replicas
from trainop.programs.schemes import FRAMEWORKS


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane, shared_operator: Operator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhooks]:
    """An operator whose webhooks are required, for all tests that only ask it."""
    if shared_operator.running:
        shared_operator.end()
    world = World(control_plane.api, f"hooks{next(NUMBERS)}")
    installed = Webhooks(world)
    operator = Operator(
        tmp_path_factory.mktemp("operator") / "operator.log",
        f"--kubeconfig={control_plane.kubeconfig}",
        "--enable-scheme=tfjob",
        environment=installed.environment,
    )
    installed.install(operator.webhook_port, "Fail")
    operator.start()
    installed.wait_called()
    yield installed
    operator.end()
    installed.remove()


def kind_world(served: Webhooks, kind: str) -> KindWorld:
    return KindWorld(served.world.api, FRAMEWORKS[kind], served.world.namespace)


def submit(served: Webhooks, stage: KindWorld, roles: Json, name: str = "j", **spec: object) -> Answered:
    return served.send("POST", f"{stage.jobs}?dryRun=All", stage.body(name, roles, **spec))


def denial(kind: str, message: str) -> str:
    return DENIED.format(kind=kind.lower(), message=message)


@pytest.mark.case("job-engine-37", "abd")
@pytest.mark.case("frameworks-v1-22", "ghi")
@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_every_kind_is_validated_also_those_that_are_not_enabled(served: Webhooks, kind: str):
    stage, row = kind_world(served, kind), ROWS[kind]
    role = next(iter(row.counts))
    at = f"spec.{stage.framework.replica_specs}[{role}].template.spec.containers"
    good = {type_: stage.role(count) for type_, count in row.counts.items()}
    assert submit(served, stage, good).status == 201
    bad = submit(served, stage, good, "0-test")
    start = denial(kind, 'metadata.name: Invalid value: "0-test": should match: a DNS-1035 label must consist of')
    assert (bad.status, bad.body["reason"], bad.message.startswith(start)) == (403, "Forbidden", True), bad
    other = submit(served, stage, good, runPolicy={"managedBy": "other-job-controller"})
    assert 'spec.runPolicy.managedBy: Unsupported value: "other-job-controller": supported values: ' in other.message
    imageless = submit(served, stage, {**good, role: stage.role(1, image="")})
    assert imageless.message == denial(kind, f"{at}[0].image: Required value: must be required")
    template: Json = {"spec": {"containers": []}}
    misspelt = submit(served, stage, {**good, role: stage.role(1, resource={"limits": {"cpu": 1}})})
    field = f"spec.{stage.framework.replica_specs}.{role}.template.spec.containers[0].resource"
    text = f'{field}: unknown field, did you mean "resources"?'
    assert (misspelt.status, misspelt.warnings) == (201, [text])
    empty = submit(served, stage, {**good, role: {"replicas": 1, "template": template}})
    assert empty.message.startswith(denial(kind, f"[{at}: Required value: must be specified, {at}: Required value: "))
    assert {answer.status for answer in (other, imageless, empty)} == {403}


@pytest.mark.parametrize("kind", FRAMEWORKS)
def test_a_wrong_annotation_is_a_warning_that_kubectl_shows(served: Webhooks, kind: str):
    """Also one with an escape code: the API server drops warnings with control characters."""
    stage, row = kind_world(served, kind), ROWS[kind]
    body = stage.body("j", {type_: stage.role(count) for type_, count in row.counts.items()})
    names = ("stalled-after", "on-disruption")
    body["metadata"]["annotations"] = {f"trainop.kubeflow.org/{name}": "\x1b[31msoon\n" for name in names}
    answer = served.send("POST", f"{stage.jobs}?dryRun=All", body)
    assert (answer.status, len(answer.warnings)) == (201, 2), answer
    assert "on-disruption]" in answer.warnings[0]
    assert 'must be "checkpoint-all"' in answer.warnings[0]
    assert "stalled-after]" in answer.warnings[1]
    assert "must be a duration from 1m to 720h, such as 30m" in answer.warnings[1]


@pytest.mark.case("job-engine-37", "cefg")
@pytest.mark.case("frameworks-v1-22", "abcdefi")
@pytest.mark.case("frameworks-v1-12", "b")
@pytest.mark.case("frameworks-v1-23", "c")
@pytest.mark.case("frameworks-v1-29", "d")
def test_rules_of_single_kinds(served: Webhooks):
    torch, flow, boost = (kind_world(served, kind) for kind in ("PyTorchJob", "TFJob", "XGBoostJob"))
    both = {"nprocPerNode": "2", "elasticPolicy": {"nProcPerNode": 2}}
    deprecated = "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"
    for stage, roles, spec, message, warnings in (
        (torch, {"Master": 2}, {}, "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1", []),
        (torch, {"Worker": 0}, {}, "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1", []),
        (
            *(torch, {"Master": 1}, {"elasticPolicy": {}}),
            "spec.pytorchReplicaSpecs[Worker]: Required value: must be configured if elastic policy is used",
            [],
        ),
        (
            *(torch, {"Worker": 1}, both),
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
            [deprecated],
        ),
        (
            *(flow, {"Chief": 1, "Master": 1}, {}),
            "spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief or Master role",
            [],
        ),
        (boost, {"Worker": 1}, {}, "spec.xgbReplicaSpecs[Master]: Required value: must be present", []),
    ):
        given = {type_: stage.role(count) for type_, count in roles.items()}
        answer = submit(served, stage, given, **spec)
        assert (answer.status, answer.message) == (403, denial(stage.framework.kind, message))
        assert answer.warnings == warnings
    policy: Json = {"elasticPolicy": {"nProcPerNode": 2}}
    warned = submit(served, torch, {"Worker": torch.role(1)}, **policy)
    assert (warned.status, warned.warnings) == (201, [deprecated])
    assert submit(served, torch, {"worker": torch.role(1)}).status == 201  # in any case of letters
    torch.create("managed", {"Worker": 1}, runPolicy={"suspend": True})
    path = f"{torch.jobs}/managed"
    change = {"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}}
    answer = served.send("PATCH", path, change, MERGE)
    text = 'spec.runPolicy.managedBy: Invalid value: "kueue.x-k8s.io/multikueue": field is immutable'
    assert (answer.status, answer.message) == (403, denial("PyTorchJob", text))


@contextmanager
def without_reviews(served: Webhooks) -> Iterator[None]:
    """No configuration, as before an upgrade; afterwards one without a CA."""
    before: Json = served.world.ask("GET", f"{CONFIGURATIONS}/{NAME}")
    for webhook in before["webhooks"]:
        del webhook["clientConfig"]["caBundle"]
    served.remove()
    served.world.wait(lambda: try_job(served.world, "0-test").status == 201, "no reviews")
    yield
    metadata = {name: before["metadata"][name] for name in ("name", "labels")}
    served.world.ask("POST", CONFIGURATIONS, {**before, "metadata": metadata})
    served.wait_called()


def test_a_stored_job_that_is_invalid_can_be_resumed_and_released(served: Webhooks):
    world = served.world
    with without_reviews(served):
        world.create_job("old", {"Master": replicas(2), "Worker": replicas(1)}, suspend=True)
    path = f"{JOBS}/old"
    text = "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1 (not changed by this update)"
    for change, warnings in (
        ({"metadata": {"finalizers": ["example.com/x"]}}, []),  # is not judged
        ({"metadata": {"annotations": {"x": "y"}}}, [text]),
        ({"spec": {"runPolicy": {"suspend": False}}}, [text]),
    ):
        answer = served.send("PATCH", path, change, MERGE)
        assert (answer.status, answer.warnings) == (200, warnings)
    worse = served.send("PATCH", path, {"spec": {"runPolicy": {"backoffLimit": -1}}}, MERGE)
    text = "spec.runPolicy.backoffLimit: Invalid value: -1: must be greater than or equal to 0"
    assert (worse.status, worse.message) == (403, denial("PyTorchJob", text))
    assert served.send("PATCH", path, {"metadata": {"finalizers": None}}, MERGE).status == 200


ONE = {"template": {"spec": {"containers": [{"name": "mpi", "image": "none"}]}}}
MPI = {
    "kubeflow.org/v1": "mpijob",
    "kubeflow.org/v2beta1": "v2beta1.mpijob",
}
"""Version -> the name of its webhook."""
EXIT_CODE = 'spec.mpiReplicaSpecs[Worker].restartPolicy: Unsupported value: "ExitCode": supported values: "Never", '
NEGATIVE = "spec.runPolicy.backoffLimit: Invalid value: -1: must be greater than or equal to 0"


def mpi_jobs(version: str, name: str = "") -> str:
    return f"/apis/{version}/namespaces/{{namespace}}/mpijobs{f'/{name}' if name else ''}"


def send_mpi(
    served: Webhooks, version: str, name: str, *, dry: bool = True, launchers: int = 1, **worker: object
) -> Answered:
    """Creates an MPIJob, which is suspended and which no operator reconciles."""
    body: Json = {
        "apiVersion": version,
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"suspend": True},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": launchers, **ONE},
                "Worker": {"replicas": 1, **ONE, **worker},
            },
        },
    }
    return served.send("POST", mpi_jobs(version) + ("?dryRun=All" if dry else ""), body)


def change_mpi(served: Webhooks, version: str, name: str, spec: Json) -> Answered:
    return served.send("PATCH", mpi_jobs(version, name), {"spec": spec}, MERGE)


@pytest.mark.case("frameworks-v1-40", "b")
def test_an_mpi_job_is_validated_by_the_rules_of_its_transport(served: Webhooks):
    """Through whichever version it is written later. Its transport is not recorded, because no operator sees it."""
    first, second = MPI
    policy: Json = {"restartPolicy": "ExitCode"}
    assert send_mpi(served, first, "x", **policy).status == 201
    refused = send_mpi(served, second, "x", **policy)
    assert refused.status == 403
    assert refused.message.startswith(denial(MPI[second], EXIT_CODE))
    for version, webhook in MPI.items():
        assert send_mpi(served, version, "x").status == 201
        large = send_mpi(served, version, "x", replicas=50_000)
        start = "spec.mpiReplicaSpecs[Worker].replicas: Forbidden: the ConfigMap with the hosts of 50000 workers "
        assert large.message.startswith(denial(webhook, start))
        assert large.message.endswith("and the API server takes no more than 1048576")
    assert send_mpi(served, first, "by-exec", dry=False, **policy).status == 201
    assert send_mpi(served, second, "by-ssh", dry=False).status == 201
    for version, webhook in MPI.items():
        assert change_mpi(served, version, "by-exec", {"runPolicy": {"backoffLimit": 3}}).status == 200
        assert change_mpi(served, version, "by-exec", {"mpiReplicaSpecs": {"Worker": policy}}).status == 200
        answer = change_mpi(served, version, "by-ssh", {"mpiReplicaSpecs": {"Worker": policy}})
        assert answer.message.startswith(denial(webhook, EXIT_CODE))
        for name in ("by-exec", "by-ssh"):
            answer = change_mpi(served, version, name, {"runPolicy": {"backoffLimit": -1}})
            assert (answer.status, answer.message) == (403, denial(webhook, NEGATIVE))


def test_a_stored_mpi_job_that_is_invalid_can_be_resumed_through_both_versions(served: Webhooks):
    with without_reviews(served):
        for number, version in enumerate(MPI):
            assert send_mpi(served, version, f"old-{number}", dry=False, launchers=2).status == 201
    for number, text in enumerate(("Forbidden: must be 1", "Invalid value: 2: must be 1")):
        warning = f"spec.mpiReplicaSpecs[Launcher].replicas: {text} (not changed by this update)"
        for (version, webhook), suspend in zip(MPI.items(), (False, True), strict=True):
            answer = change_mpi(served, version, f"old-{number}", {"runPolicy": {"suspend": suspend}})
            assert (answer.status, answer.warnings) == (200, [warning])
            answer = change_mpi(served, version, f"old-{number}", {"runPolicy": {"backoffLimit": -1}})
            assert (answer.status, answer.message) == (403, denial(webhook, NEGATIVE))


def test_bundle_and_secret_are_restored(served: Webhooks):
    """A foreign bundle is overwritten; a configuration that is added later gets the bundle; a deleted Secret is made
    again, and the operator serves the new certificate."""
    world = served.world
    authority = served.wait_injected()
    another = secret_data(*cert_controller_pairs())["ca.crt"]
    foreign = [{"op": "replace", "path": "/webhooks/3/clientConfig/caBundle", "value": another}]
    world.ask("PATCH", f"{CONFIGURATIONS}/{NAME}", foreign, JSON_PATCH)
    assert served.wait_injected() == authority
    served.wait_called()
    with without_reviews(served):
        assert try_job(world, "0-test").status == 201
    assert served.wait_injected() == authority
    served.delete_secret()
    world.wait(lambda: served.secret().get("ca.crt", authority) != authority, "a new CA")
    assert served.wait_injected() != authority
    served.wait_called()
