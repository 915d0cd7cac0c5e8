"""What the accounts that the operator makes may do, by the authorizer of a real kube-apiserver.

The oracle is the specification: the account of a launcher may read the workers that its own job controls, and execute
commands in them, and nothing else. It is asked about every service account of the namespace.
"""

from __future__ import annotations

import itertools
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.controlplane import ControlPlane
from tests.needs import find_kubectl
from tests.patience import PATIENCE
from tests.server.process import Operator
from tests.server.test_mpi import V1, V2, MpiWorld, jobs, mpi_job
from tests.server.world import CORE, Json, replicas
from trainop.kinds.mpi.ssh.keys import are_usable, make_keys

NUMBERS = itertools.count(1)
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
GRANTED = {("get", "pods"), ("create", "pods/exec")}
"""Of workers that the job controls, each by its name."""
VERBS = {
    "pods": ("get", "list", "watch", "create", "delete", "patch", "update"),
    "pods/exec": ("create", "get"),
    "pods/attach": ("create", "get"),
    "pods/portforward": ("create", "get"),
    "pods/log": ("get",),
    "pods/ephemeralcontainers": ("patch", "update"),
    "secrets": ("get", "list"),
    "configmaps": ("get", "list", "patch"),
    "serviceaccounts/token": ("create",),
    "roles.rbac.authorization.k8s.io": ("get", "patch", "escalate"),
    "mpijobs.kubeflow.org": ("get", "create", "delete"),
}
"""What might be allowed."""


class RightsWorld(MpiWorld):
    def may(self, account: str, verb: str, resource: str, name: str = "") -> bool:
        """The answer of the API server."""
        plural, _, group = resource.partition(".")
        plural, _, subresource = plural.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": plural, "name": name}
        attributes |= {"subresource": subresource} if subresource else {}
        user = f"system:serviceaccount:{self.namespace}:{account}"
        spec = {"user": user, "groups": ["system:serviceaccounts", "system:authenticated"]}
        answer = self.ask("POST", REVIEWS, {"spec": {**spec, "resourceAttributes": attributes}})
        return bool(answer["status"].get("allowed"))

    def accounts(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.ask("GET", f"{CORE}/serviceaccounts")["items"]]

    def reach(self, account: str) -> set[str]:
        """The pods in which an account may execute commands; fails if it may do anything else."""
        found: set[str] = set()
        for resource, verbs in VERBS.items():
            for verb, name in itertools.product(verbs, ["", *self.pods()]):
                if self.may(account, verb, resource, name):
                    assert name, f"{account} may {verb} all {resource}"
                    assert (verb, resource) in GRANTED, f"{account} may {verb} {resource} {name}"
                    if resource == "pods/exec":
                        found.add(name)
                    else:
                        assert self.may(account, "create", "pods/exec", name)
        return found

    def workers_of(self, account: str) -> set[str]:
        """The workers of the job that controls the account, or that has bound it: those that the job controls, too."""
        own = self.ask("GET", f"{CORE}/serviceaccounts/{account}")["metadata"].get("ownerReferences") or []
        uids = {each["uid"] for each in own} | self.uids_by_name(account)
        return {
            name
            for name, pod in self.pods().items()
            if "-worker-" in name and {each["uid"] for each in pod["metadata"].get("ownerReferences") or ()} & uids
        }

    def uids_by_name(self, account: str) -> set[str]:
        """The jobs whose launchers name the account."""
        named = {}
        for job in self.ask("GET", jobs(V1))["items"]:
            template = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
            named[job["metadata"]["uid"]] = template.get("serviceAccountName")
        return {uid for uid, name in named.items() if name == account}

    def check(self, *, granted: set[str]) -> None:
        """No account may do more than the specification allows; together they reach the pods `granted`."""
        self.wait(lambda: self.total() == granted, f"rights in {sorted(granted)}")
        for account in self.accounts():
            assert self.reach(account) <= self.workers_of(account), account

    def total(self) -> set[str]:
        pods = self.pods()
        return {pod for each in self.accounts() for pod in pods if self.may(each, "create", "pods/exec", pod)}

    def rights_condition(self, name: str) -> str:
        conditions = self.mpi(name).get("status", {}).get("conditions", [])
        return next((each["message"] for each in conditions if each["type"] == "RightsGranted"), "")


@pytest.fixture(scope="module")
def rights_operator(
    control_plane_with_controllers: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    flags = ("--enable-scheme=MPIJob", "--enable-scheme=PyTorchJob", "--webhook-server-port=0")
    operator = Operator(log, f"--kubeconfig={control_plane_with_controllers.kubeconfig}", *flags)
    operator.start()
    yield operator
    operator.end()


@pytest.fixture
def world(control_plane_with_controllers: ControlPlane, rights_operator: Operator) -> RightsWorld:
    del rights_operator
    return RightsWorld(control_plane_with_controllers.api, f"rights{next(NUMBERS)}")


def elastic(name: str, workers: int = 2, **fields: Any) -> Json:
    """A job by exec whose workers are replaced."""
    body = mpi_job(name, V1, workers, **fields)
    body["spec"]["mpiReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    return body


def test_an_mpijob_gets_no_right_in_the_pods_of_another_job_of_its_name(world: RightsWorld):
    world.create_job("bank", {"Master": replicas(1), "Worker": replicas(1)})
    world.wait_pods("bank-master-0", "bank-worker-0")
    world.create(mpi_job("bank", V1))
    world.wait(lambda: "bank-worker-1" in world.pods(), "the other worker")
    message = world.wait(lambda: world.rights_condition("bank"), "the condition")
    assert "bank-worker-0" in message
    assert "bank-worker-1" not in message
    world.wait(
        lambda: any("bank-worker-0" in each["message"] for each in world.events("ErrResourceExists")), "the event"
    )
    world.check(granted=set())
    world.ask("DELETE", "/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/bank")
    world.wait(lambda: not world.rights_condition("bank"), "the end of the condition")
    world.check(granted={"bank-worker-0", "bank-worker-1"})


def test_rights_follow_the_workers(world: RightsWorld):
    world.create(elastic("j"))
    world.check(granted={"j-worker-0", "j-worker-1"})
    world.ready("j-worker-0", "j-worker-1", "j-launcher")
    world.wait_state("j", "Running")

    spec = world.pods()["j-worker-1"]["spec"]["containers"]
    world.ask("DELETE", f"{CORE}/pods/j-worker-1?gracePeriodSeconds=0")
    body = {"metadata": {"name": "j-worker-1"}, "spec": {"containers": [{"name": "x", "image": spec[0]["image"]}]}}
    thief = world.wait(lambda: world.try_to("POST", f"{CORE}/pods", body).status in (201, 409), "the name is taken")
    assert thief
    foreign = not world.pods()["j-worker-1"]["metadata"].get("ownerReferences")
    if foreign:  # the operator was slower
        world.check(granted={"j-worker-0"})
        world.wait(lambda: "j-worker-1" in world.rights_condition("j"), "the condition")
        world.ask("DELETE", f"{CORE}/pods/j-worker-1?gracePeriodSeconds=0")
    world.check(granted={"j-worker-0", "j-worker-1"})

    world.patch("j", {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}}})
    world.check(granted={"j-worker-0"})
    world.patch("j", {"spec": {"runPolicy": {"suspend": True}}})
    world.check(granted=set())


def test_an_account_is_never_bound_to_the_role_of_somebody_else(world: RightsWorld):
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete"]}]
    world.ask("POST", roles, {"metadata": {"name": "j-launcher"}, "rules": rules})
    world.create(mpi_job("j", V1, 1))
    message = world.wait(lambda: world.rights_condition("j"), "the condition")
    assert "Role j-launcher" in message
    world.check(granted=set())
    world.ask("DELETE", f"{roles}/j-launcher")
    world.check(granted={"j-worker-0"})


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_a_finished_job_leaves_no_rights(world: RightsWorld, policy: str):
    world.create(mpi_job("j", V1, run={"cleanPodPolicy": policy}))
    world.check(granted={"j-worker-0", "j-worker-1"})
    world.ready("j-worker-0", "j-worker-1", "j-launcher")
    world.end_pod("j-launcher")
    world.wait_state("j", "Succeeded")
    world.check(granted=set())


def test_a_job_that_is_deleted_without_its_children_leaves_no_rights(world: RightsWorld):
    world.create(mpi_job("j", V1))
    world.check(granted={"j-worker-0", "j-worker-1"})
    world.ask("DELETE", f"{jobs(V1, 'j')}?propagationPolicy=Orphan")
    world.wait(lambda: not world.exists(jobs(V1, "j")), "the end of the job")
    world.wait(lambda: not world.total(), "no rights")
    assert {"j-worker-0", "j-worker-1"} <= world.pods().keys()


def test_an_account_of_the_user_gets_rights_in_the_workers_of_the_jobs_that_name_it_only(world: RightsWorld):
    world.ask("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": "shared"}})
    for name in ("a", "b"):
        body = mpi_job(name, V1, 1)
        body["spec"]["mpiReplicaSpecs"]["Launcher"]["template"] = {
            "spec": {**body["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"], "serviceAccountName": "shared"}
        }
        world.create(body)
    world.create(mpi_job("c", V1, 1))
    world.create(mpi_job("d", V2, 1))
    world.wait(lambda: "d-worker-0" in world.pods(), "the job by ssh")
    world.check(granted={"a-worker-0", "b-worker-0", "c-worker-0"})
    assert world.reach("shared") == {"a-worker-0", "b-worker-0"}
    assert world.reach("c-launcher") == {"c-worker-0"}
    assert set(world.accounts()) == {"default", "shared", "c-launcher"}


class Launcher:
    """A launcher's container: kubectl with the token of the service account."""

    def __init__(self, world: RightsWorld, folder: Path, name: str) -> None:
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"{CORE}/serviceaccounts/{name}-launcher/token"
        token = world.ask("POST", path, request)["status"]["token"]
        api = world.api
        authority = folder / "ca.crt"
        loaded = api.context.get_ca_certs(binary_form=True)
        authority.write_text("".join(ssl.DER_cert_to_PEM_cert(each) for each in loaded))
        options = f"--server=https://{api.host}:{api.port} --certificate-authority={authority} --token={token}"
        (folder / "kubectl").write_text(
            f'#!/bin/sh\nexec {find_kubectl()} {options} --namespace={world.namespace} "$@"\n'
        )
        (folder / "kubectl").chmod(0o755)
        hostfile = world.ask("GET", f"{CORE}/configmaps/{name}-config")["data"]["hostfile"]
        (folder / "hostfile").write_text(hostfile)
        containers = world.pods()[f"{name}-launcher"]["spec"]["initContainers"]
        (waiting,) = (each for each in containers if each["name"] == "wait-for-workers")
        script = waiting["command"][2].replace("/opt/kube", str(folder)).replace("/etc/mpi", str(folder))
        self.environment = {"NAMESPACE": world.namespace, "PATH": os.environ["PATH"], "HOME": str(folder)}
        self.script, self.folder = script, folder

    def wait(self) -> subprocess.Popen[str]:
        """The init container."""
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(["/bin/sh", "-c", self.script], env=self.environment, **pipes)

    def execute(self, pod: str) -> str:
        """What kubectl says when it is to run a command there. There is no kubelet, so it fails in any case."""
        command = [str(self.folder / "kubectl"), "exec", pod, "--", "true"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode
        return done.stderr


def test_a_launcher_can_do_its_work_with_kubectl(world: RightsWorld, tmp_path: Path):
    """The shipped script of the init container waits until all workers run, and ends then."""
    world.create(mpi_job("j", V1, 3))
    world.create(mpi_job("other", V1, 1))
    world.check(granted={"j-worker-0", "j-worker-1", "j-worker-2", "other-worker-0"})
    launcher = Launcher(world, tmp_path, "j")
    world.ready("j-worker-0", "j-worker-2")
    waiting = launcher.wait()
    try:
        assert waiting.stdout is not None
        assert waiting.stdout.readline().startswith("2 of 3 workers are running")
        world.ready("j-worker-1")
        assert waiting.wait(PATIENCE) == 0
    finally:
        waiting.kill()
        waiting.communicate()
    assert "forbidden" not in launcher.execute("j-worker-1").lower()
    assert "cannot get resource" in launcher.execute("other-worker-0")


@pytest.mark.parametrize("immutable", [False, True])
def test_a_key_that_somebody_planted_is_never_used(world: RightsWorld, immutable: bool):
    """The job cannot create its first worker yet, and somebody who may only create Secrets uses the time."""
    labels = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-name": "k"}
    pod = {"metadata": {"name": "k-worker-0", "labels": labels}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
    world.ask("POST", f"{CORE}/pods", pod)
    world.create(mpi_job("k", V2, 1))
    world.wait(lambda: world.events("ErrResourceExists"), "a job that waits")
    owner = {"apiVersion": V2, "kind": "MPIJob", "name": "k", "uid": world.mpi("k")["metadata"]["uid"]}
    metadata = {"name": "k-ssh", "labels": {"app": "k"}, "ownerReferences": [{**owner, "controller": True}]}
    secret = {"metadata": metadata, "type": "kubernetes.io/ssh-auth", "immutable": immutable, **make_keys()}
    planted = world.ask("POST", f"{CORE}/secrets", secret)["data"]
    world.ask("DELETE", f"{CORE}/pods/k-worker-0?gracePeriodSeconds=0")
    if immutable:
        (event,) = world.wait(lambda: world.events("SecretUnusable"), "the warning")
        assert "delete it" in event["message"]
        assert "k-worker-0" not in world.pods()
        world.ask("DELETE", f"{CORE}/secrets/k-ssh")
    world.wait(lambda: "k-worker-0" in world.pods(), "the worker")
    data = world.ask("GET", f"{CORE}/secrets/k-ssh")["data"]
    assert are_usable({"data": data})
    assert not set(data.values()) & set(planted.values())
