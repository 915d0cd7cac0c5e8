"""The endpoint to which the pods of an embedded cluster report their progress: the operator's own, in this process."""

from __future__ import annotations

from datetime import UTC, datetime

from trainop.local.api.serving.tls import make_certificate
from trainop.local.cluster import LocalCluster
from trainop.local.node.pods.service_account import EXPOSED_ADDRESS
from trainop.programs.progress import EmbeddedEndpoint
from trainop.runtime.lowlevel import ServingCertificate


def make_endpoint(cluster: LocalCluster) -> EmbeddedEndpoint:
    """With a certificate that is valid for this session; pods do not outlive it."""
    made = make_certificate("127.0.0.1", datetime.now(UTC), (EXPOSED_ADDRESS,), subject="trainop progress")
    certificate = ServingCertificate()
    certificate.load(made.certificate, made.key)
    certificate.authority = made.certificate
    return EmbeddedEndpoint(certificate, lambda port: f"https://{cluster.node.expose(port)}")
