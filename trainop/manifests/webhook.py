"""The webhook configurations: which requests the API server sends to the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainop.controllers.admission import (
    DI_MUTATING,
    DI_VALIDATING,
    MUTATING,
    Webhook,
    configurations_of,
    webhooks_of,
)
from trainop.engine.kind import Kind
from trainop.manifests.names import LABELS, NAME
from trainop.manifests.overlays import component, json_patch
from trainop.operator import kinds_with_webhooks
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import Resource
from trainop.runtime.webhook.injection import Configuration

_FIRST_VERSION = "v1"
"""The version whose webhooks have upstream's names, without a version."""


_UPSTREAM = {DI_MUTATING: "mdijob.kb.io", DI_VALIDATING: "vdijob.kb.io"}
"""The configurations of DI-orchestrator -> the name of the webhook in each."""


def webhook_configurations(namespace: str = "default") -> list[Json]:
    """One webhook per kind and version, with names and paths of training-operator. The operator adds the `caBundle`.
    Kustomize replaces the namespace `default` by that of the Service.

    The failure policy is Ignore, in contrast to upstream: the operator repeats every check when it reconciles a job, so
    that a job that is created while it is down need not be refused.
    """
    return [
        webhook_configuration(each, webhooks, {"name": NAME, "namespace": namespace}, LABELS)
        for each, webhooks in listed_webhooks(kinds_with_webhooks()).items()
    ]


def listed_webhooks(kinds: Iterable[Kind]) -> dict[Configuration, list[Webhook]]:
    """The webhooks of these kinds, by the configuration that lists them."""
    webhooks = webhooks_of(kinds)
    return {
        each: [webhook for webhook in webhooks if webhook.configuration == each] for each in configurations_of(webhooks)
    }


def webhook_configuration(
    configuration: Configuration,
    webhooks: Iterable[Webhook],
    service: Mapping[str, str],
    labels: Mapping[str, str],
    policy: str = "Ignore",
) -> Json:
    """The configuration of webhooks that `service` serves, given by `name` and `namespace`."""
    return {
        "apiVersion": configuration.resource.api_version,
        "kind": configuration.resource.kind,
        "metadata": {"name": configuration.name, "labels": dict(labels)},
        "webhooks": [
            {
                "name": _name(webhook),
                "clientConfig": {"service": {**service, "path": webhook.path}},
                "rules": [_rule(webhook.resource)],
                # Each version has a webhook of its own. `Equivalent`, the default, would call both for every request.
                "matchPolicy": "Exact",
                "failurePolicy": policy,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
            for webhook in webhooks
        ],
    }


def _name(webhook: Webhook) -> str:
    if webhook.configuration in _UPSTREAM:
        return _UPSTREAM[webhook.configuration]
    resource, prefix = webhook.resource, "defaulter" if webhook.configuration == MUTATING else "validator"
    version = "" if resource.version == _FIRST_VERSION else f"{resource.version}."
    return f"{prefix}.{version}{resource.kind.lower()}.training-operator.kubeflow.org"


def _rule(resource: Resource) -> Json:
    return {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource.plural],
    }


def required_webhooks() -> Json:
    """A kustomize component that sets the failure policy Fail: without the operator no job is created or updated."""
    patches = []
    for configuration, webhooks in listed_webhooks(kinds_with_webhooks()).items():
        operations = [
            {"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": "Fail"}
            for index in range(len(webhooks))
        ]
        patches.append(json_patch({"kind": configuration.resource.kind, "name": configuration.name}, operations))
    return component(patches)
