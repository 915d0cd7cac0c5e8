"""The shipped webhook configuration on a real API server, which calls operators that run on the same machine."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

import yaml

from e2e.cluster.api import Api
from tests.server.process import Operator
from tests.server.world import JOBS, MERGE, Json, World, replicas

ROOT = Path(__file__).parent.parent.parent
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME = "validator.training-operator.kubeflow.org"
SECRET = "training-operator-webhook-cert"
SECRETS = "/api/v1/namespaces/{namespace}/secrets"
SERVICES = "/api/v1/namespaces/{namespace}/services"
DENIED = 'admission webhook "validator.{kind}.training-operator.kubeflow.org" denied the request: {message}'
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
    """One installation: the operator's namespace, its Service, and the configuration for jobs in that namespace.

    The Service is an alias of this machine, because nothing here routes cluster IPs. The API server verifies the
    certificate for the Service's name nevertheless.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.environment = {"MY_POD_NAMESPACE": world.namespace}
        self.host = f"training-operator.{world.namespace}.svc"
        spec = {"type": "ExternalName", "externalName": "localhost"}
        world.ask("POST", SERVICES, {"metadata": {"name": "training-operator"}, "spec": spec})

    def install(self, port: int, policy: str = "Ignore") -> None:
        """Creates the shipped configuration for an operator that listens on `port`."""
        self.remove()
        self.world.ask("POST", CONFIGURATIONS, self.configuration(port, policy))

    def configuration(self, port: int, policy: str) -> Json:
        text = (ROOT / "manifests" / "base" / "webhook.yaml").read_text(encoding="utf-8")
        configuration: Json = yaml.safe_load(text)
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["service"] |= {"namespace": self.world.namespace, "port": port}
            webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self.world.namespace}}
            webhook["failurePolicy"] = policy
        return configuration

    def empty_secret(self) -> None:
        """Leaves the Secret as the overlays of training-operator create it."""
        self.world.ask("PATCH", f"{SECRETS}/{SECRET}", {"data": None}, MERGE)

    def remove(self) -> None:
        self.world.try_to("DELETE", f"{CONFIGURATIONS}/{NAME}")

    def bundles(self) -> list[bytes]:
        """The `caBundle` of each webhook; empty without one."""
        webhooks = self.world.ask("GET", f"{CONFIGURATIONS}/{NAME}")["webhooks"]
        return [base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks]

    def wait_injected(self) -> bytes:
        """Waits until all webhooks have the CA of the Secret, and returns it."""

        def injected() -> bytes | None:
            authority = self.secret().get("ca.crt", b"")
            return authority if authority and set(self.bundles()) == {authority} else None

        found: bytes = self.world.wait(injected, "the CA in all webhooks")
        return found

    def secret(self) -> dict[str, bytes]:
        answer = self.world.try_to("GET", f"{SECRETS}/{SECRET}")
        data = answer.body.get("data") or {} if answer.status == 200 else {}
        return {name: base64.b64decode(value) for name, value in data.items()}

    def put_secret(self, data: Json) -> None:
        self.world.ask("POST", SECRETS, {"metadata": {"name": SECRET}, "type": "Opaque", "data": data})

    def delete_secret(self) -> None:
        self.world.ask("DELETE", f"{SECRETS}/{SECRET}")

    def wait_called(self) -> None:
        """Waits until the API server calls the operator, which takes effect shortly after the configuration is
        changed."""
        self.world.wait(lambda: try_job(self.world, "0-test").status == 403, "a review")

    def send(self, method: str, path: str, body: Json, content_type: str = "application/json") -> Answered:
        return send(self.world.api, method, path.format(namespace=self.world.namespace), body, content_type)


def send(api: Api, method: str, path: str, body: Json, content_type: str) -> Answered:
    """One request, whose response is returned with its warnings."""
    connection = http.client.HTTPSConnection(api.host, api.port, timeout=60, context=api.context)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": content_type})
        response = connection.getresponse()
        body = json.loads(response.read())
        lines = response.headers.get_all("Warning") or []
        return Answered(response.status, body, [line.split(" ", 2)[2].strip('"') for line in lines])
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
