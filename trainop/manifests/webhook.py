"""The webhook configuration: which requests the API server sends to the operator for validation."""

from __future__ import annotations

from trainop.controllers.admission import CONFIGURATION
from trainop.manifests.names import LABELS, NAME
from trainop.manifests.overlays import component, json_patch
from trainop.operator import FRAMEWORKS
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource
from trainop.runtime.webhook.admission import validating_path
from trainop.runtime.webhook.injection import VALIDATING_WEBHOOK_CONFIGURATIONS


def webhook_configuration(namespace: str = "default") -> Json:
    """One webhook per kind, with names and paths of training-operator. The operator adds the `caBundle`. Kustomize
    replaces the namespace `default` by that of the Service.

    The failure policy is Ignore, in contrast to upstream: the operator repeats every check when it reconciles a job, so
    that a job that is created while it is down need not be refused.
    """
    resources = (framework.resource for framework in FRAMEWORKS.values())
    return {
        "apiVersion": VALIDATING_WEBHOOK_CONFIGURATIONS.api_version,
        "kind": VALIDATING_WEBHOOK_CONFIGURATIONS.kind,
        "metadata": {"name": CONFIGURATION, "labels": dict(LABELS)},
        "webhooks": [_webhook(resource, namespace) for resource in sorted(resources, key=_short_name)],
    }


def _short_name(resource: Resource) -> str:
    return resource.kind.lower()


def _webhook(resource: Resource, namespace: str) -> Json:
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource.plural],
    }
    return {
        "name": f"validator.{_short_name(resource)}.training-operator.kubeflow.org",
        "clientConfig": {"service": {"name": NAME, "namespace": namespace, "path": validating_path(resource)}},
        "rules": [rule],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def required_webhooks() -> Json:
    """A kustomize component that sets the failure policy Fail: without the operator no job is created or updated."""
    operations = [
        {"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": "Fail"}
        for index in range(len(FRAMEWORKS))
    ]
    target = {"kind": VALIDATING_WEBHOOK_CONFIGURATIONS.kind, "name": CONFIGURATION}
    return component([json_patch(target, operations)])
