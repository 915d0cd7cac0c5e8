"""The webhook configurations: which requests the API server sends to the operator."""

from __future__ import annotations

from trainop.controllers.admission import MUTATING, Webhook, configurations_of, webhooks_of
from trainop.manifests.names import LABELS, NAME
from trainop.manifests.overlays import component, json_patch
from trainop.operator import all_kinds
from trainop.runtime.objects.metadata import Json
from trainop.runtime.webhook.injection import Configuration

_FIRST_VERSION = "v1"
"""The version whose webhooks have upstream's names, without a version."""


def webhook_configurations(namespace: str = "default") -> list[Json]:
    """One webhook per kind and version, with names and paths of training-operator. The operator adds the `caBundle`.
    Kustomize replaces the namespace `default` by that of the Service.

    The failure policy is Ignore, in contrast to upstream: the operator repeats every check when it reconciles a job, so
    that a job that is created while it is down need not be refused.
    """
    listed = _listed()
    return [
        {
            "apiVersion": each.resource.api_version,
            "kind": each.resource.kind,
            "metadata": {"name": each.name, "labels": dict(LABELS)},
            "webhooks": [_webhook(webhook, namespace) for webhook in webhooks],
        }
        for each, webhooks in listed.items()
    ]


def _listed() -> dict[Configuration, list[Webhook]]:
    webhooks = webhooks_of(all_kinds())
    return {
        each: [webhook for webhook in webhooks if webhook.configuration == each] for each in configurations_of(webhooks)
    }


def _webhook(webhook: Webhook, namespace: str) -> Json:
    resource, prefix = webhook.resource, "defaulter" if webhook.configuration == MUTATING else "validator"
    version = "" if resource.version == _FIRST_VERSION else f"{resource.version}."
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource.plural],
    }
    return {
        "name": f"{prefix}.{version}{resource.kind.lower()}.training-operator.kubeflow.org",
        "clientConfig": {"service": {"name": NAME, "namespace": namespace, "path": webhook.path}},
        "rules": [rule],
        # Each version has a webhook of its own. `Equivalent`, the default, would call both for every request.
        "matchPolicy": "Exact",
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def required_webhooks() -> Json:
    """A kustomize component that sets the failure policy Fail: without the operator no job is created or updated."""
    patches = []
    for configuration, webhooks in _listed().items():
        operations = [
            {"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": "Fail"}
            for index in range(len(webhooks))
        ]
        patches.append(json_patch({"kind": configuration.resource.kind, "name": configuration.name}, operations))
    return component(patches)
