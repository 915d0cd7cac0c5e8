"""Admission webhooks in the benchmark: those of the measured operator, which runs on the API server's machine."""

from __future__ import annotations

import asyncio
import base64
import time

import msgspec

from e2e.bench.cluster import NAMESPACE, BenchCluster
from e2e.bench.operators import NAMESPACE as OPERATOR_NAMESPACE
from e2e.peers import CERTIFICATE_FILES, CERTIFICATES, issue_webhook_certificate
from trainop.manifests.webhook import webhook_configurations
from trainop.runtime.client.transport import Request
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import SECRETS, SERVICES, Json, Resource
from trainop.runtime.webhook.injection import VALIDATING_WEBHOOK_CONFIGURATIONS

PATIENCE = 60.0
SECRET = "training-operator-webhook-cert"


async def install_certificates(cluster: BenchCluster) -> None:
    """Provides the webhook certificate that training-operator's cert-controller and mounted Secret would provide."""
    issue_webhook_certificate(CERTIFICATES)
    data = {name: base64.b64encode((CERTIFICATES / name).read_bytes()).decode() for name in CERTIFICATE_FILES}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": data}
    await cluster.client.create(SECRETS, body, namespace=OPERATOR_NAMESPACE)


async def mount_certificates(cluster: BenchCluster) -> None:
    """Writes the Secret's certificates to the folder where training-operator expects them, as a kubelet would. Its
    cert-controller replaces those that it has not issued."""
    secret = await cluster.client.get(SECRETS, SECRET, OPERATOR_NAMESPACE)
    for name, content in secret["data"].items():
        path, wanted = CERTIFICATES / name, base64.b64decode(content)
        if path.read_bytes() != wanted:
            path.write_bytes(wanted)


async def install_webhook(cluster: BenchCluster, resource: Resource, port: int) -> None:
    """Lets the API server call the webhook of this resource at `port`. The operator adds the CA to the configuration.

    The Service is an alias of this machine; the API server verifies the certificate for its name.
    """
    alias = {"type": "ExternalName", "externalName": "localhost"}
    await cluster.client.create(
        SERVICES, {"metadata": {"name": "training-operator", "namespace": OPERATOR_NAMESPACE}, "spec": alias}
    )
    (configuration,) = (
        each
        for each in webhook_configurations(OPERATOR_NAMESPACE)
        if each["kind"] == VALIDATING_WEBHOOK_CONFIGURATIONS.kind
    )
    chosen = [each for each in configuration["webhooks"] if each["rules"][0]["resources"] == [resource.plural]]
    for webhook in chosen:
        webhook["clientConfig"]["service"]["port"] = port
        webhook["failurePolicy"] = "Fail"
    await cluster.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {**configuration, "webhooks": chosen})


async def wait_for_webhook(cluster: BenchCluster, resource: Resource, job: Json, *, mounted: bool) -> None:
    """Waits until the API server accepts this job, for which it has to call the webhook. Raises `ApiError`. With
    `mounted`, the operator reads its certificate from the mounted Secret."""
    request = Request("POST", resource.path(NAMESPACE), {"dryRun": "All"}, msgspec.json.encode(job))
    end = time.monotonic() + PATIENCE
    while True:
        if mounted:
            await mount_certificates(cluster)
        try:
            await cluster.client.request(request)
        except ApiError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)
        else:
            return
