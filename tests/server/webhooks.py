"""The shipped webhook configuration on a real API server, which calls operators that run on the same machine."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from e2e.cluster.api import Api
from tests.server.process import Operator
from tests.server.world import JOBS, MERGE, Json, World, replicas

ROOT = Path(__file__).parent.parent.parent
GROUP = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = f"{GROUP}/validatingwebhookconfigurations"
NAME = "validator.training-operator.kubeflow.org"
SECRET = "training-operator-webhook-cert"
SECRETS = "/api/v1/namespaces/{namespace}/secrets"
SERVICES = "/api/v1/namespaces/{namespace}/services"
DI_NAMES = ("di-mutating-webhook-configuration", "di-validating-webhook-configuration")
DENIED = 'admission webhook "validator.{kind}.training-operator.kubeflow.org" denied the request: {message}'
DIJOBS = "/apis/diengine.opendilab.org/v1alpha1/namespaces/{namespace}/dijobs"
JSON_PATCH = "application/json-patch+json"


class Answered(NamedTuple):
    """A response with the texts of its `Warning` headers."""

    status: int
    body: Json
    warnings: list[str]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Webhooks:
    """One installation: the operator's namespace, its Service, and the configurations for jobs in that namespace.

    The Service is an alias of this machine, because nothing here routes cluster IPs. The API server verifies the
    certificate for the Service's name nevertheless.
    """

    shipped = "base/webhook.yaml"
    """The file of the configurations below `manifests`."""
    names: Collection[str] = (NAME,)
    """The configurations that are installed."""
    service = "training-operator"
    secret_name = SECRET

    def __init__(self, world: World) -> None:
        self.world = world
        self.environment = {"MY_POD_NAMESPACE": world.namespace}
        self.port = 0
        self.host = f"{self.service}.{world.namespace}.svc"
        spec = {"type": "ExternalName", "externalName": "localhost"}
        made = world.try_to("POST", SERVICES, {"metadata": {"name": self.service}, "spec": spec})
        assert made.status in {201, 409}, made  # one operator may serve several configurations

    def install(self, port: int, policy: str = "Ignore") -> None:
        """Creates the shipped configurations for an operator that listens on `port`."""
        self.remove()
        self.port = port
        for path, configuration in self.configurations().items():
            for webhook in configuration["webhooks"]:
                webhook["clientConfig"]["service"] |= {"namespace": self.world.namespace, "port": port}
                webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self.world.namespace}}
                webhook["failurePolicy"] = policy
            self.world.ask("POST", path.rpartition("/")[0], configuration)

    def configurations(self) -> dict[str, Json]:
        """Path in the API -> the shipped configuration."""
        text = (ROOT / "manifests" / self.shipped).read_text(encoding="utf-8")
        return {
            f"{GROUP}/{each['kind'].lower()}s/{each['metadata']['name']}": each
            for each in yaml.safe_load_all(text)
            if each["metadata"]["name"] in self.names
        }

    def empty_secret(self) -> None:
        """Leaves the Secret as the overlays of training-operator create it."""
        self.world.ask("PATCH", f"{SECRETS}/{self.secret_name}", {"data": None}, MERGE)

    def remove(self) -> None:
        for path in self.configurations():
            self.world.try_to("DELETE", path)

    def bundles(self) -> list[bytes]:
        """The `caBundle` of each webhook; empty without one."""
        found = [webhook for path in self.configurations() for webhook in self.world.ask("GET", path)["webhooks"]]
        return [base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in found]

    def wait_injected(self) -> bytes:
        """Waits until all webhooks have the CA of the Secret, and returns it."""

        def injected() -> bytes | None:
            authority = self.secret().get("ca.crt", b"")
            return authority if authority and set(self.bundles()) == {authority} else None

        found: bytes = self.world.wait(injected, "the CA in all webhooks")
        return found

    def secret(self) -> dict[str, bytes]:
        answer = self.world.try_to("GET", f"{SECRETS}/{self.secret_name}")
        data = answer.body.get("data") or {} if answer.status == 200 else {}
        return {name: base64.b64decode(value) for name, value in data.items()}

    def put_secret(self, data: Json) -> None:
        self.world.ask("POST", SECRETS, {"metadata": {"name": self.secret_name}, "type": "Opaque", "data": data})

    def delete_secret(self) -> None:
        self.world.ask("DELETE", f"{SECRETS}/{self.secret_name}")

    def wait_called(self) -> None:
        """Waits until the API server calls the operator, which takes effect shortly after the configuration is
        changed."""
        self.world.wait(lambda: try_job(self.world, "0-test").status == 403, "a review")

    def send(self, method: str, path: str, body: Json, content_type: str = "application/json") -> Answered:
        return send(self.world.api, method, path.format(namespace=self.world.namespace), body, content_type)


class DiWebhooks(Webhooks):
    """Those of DIJobs, served by di-webhook."""

    shipped = "overlays/di-system/webhooks.yaml"
    names = DI_NAMES
    service = "di-webhook-service"
    secret_name = "di-webhook-server-cert"

    def wait_called(self) -> None:
        self.world.wait(lambda: self.try_dijob("hello").status == 403, "a review")

    def try_dijob(self, policy: str | None, name: str = "a", query: str = "?dryRun=All", **spec: Any) -> Answered:
        """Creates a DIJob with this `cleanPodPolicy`, by default as a dry run."""
        return self.send("POST", DIJOBS + query, dijob(policy, name, **spec))


class WebhooksBeside(DiWebhooks):
    """Those of DIJobs, served by training-operator, as the component `dijob` installs them."""

    shipped = "components/dijob/dijob.yaml"
    service = "training-operator"
    secret_name = SECRET


def dijob(policy: str | None, name: str = "a", **spec: Any) -> Json:
    template = {"spec": {"containers": [{"name": "di-container", "image": "none"}]}}
    given = {} if policy is None else {"cleanPodPolicy": policy}
    return {
        "apiVersion": "diengine.opendilab.org/v1alpha1",
        "kind": "DIJob",
        "metadata": {"name": name},
        "spec": {"coordinator": {"template": template}, **given, **spec},
    }


def send(api: Api, method: str, path: str, body: Json, content_type: str) -> Answered:
    """One request, whose response is returned with its warnings."""
    connection = http.client.HTTPSConnection(api.host, api.port, timeout=60, context=api.context)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": content_type})
        response = connection.getresponse()
        body = json.loads(response.read())
        lines = response.headers.get_all("Warning") or []
        return Answered(response.status, body, [line.split(" ", 2)[2][1:-1].replace('\\"', '"') for line in lines])
    finally:
        connection.close()


def try_job(world: World, name: str, query: str = "?dryRun=All") -> Answered:
    """Creates a PyTorchJob of one worker, by default as a dry run."""
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Worker": replicas(1)}},
    }
    return send(world.api, "POST", JOBS.format(namespace=world.namespace) + query, body, "application/json")


def served_certificate(operator: Operator, authority: bytes, name: str) -> bytes:
    """The certificate (DER) that an operator serves to a client that trusts `authority` for `name`."""
    context = ssl.create_default_context(cadata=authority.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # CA certificates of cert-controller have serial number 0
    opened = socket.create_connection(("localhost", operator.webhook_port), timeout=30)
    with opened, context.wrap_socket(opened, server_hostname=name) as connection:
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return found
