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
from trainop.manifests.overlays import Component, Needed, json_patch
from trainop.programs.schemes import all_kinds, kinds_with_webhooks
from trainop.runtime import Json, Resource
from trainop.runtime.lowlevel import Configuration

_FIRST_VERSION = "v1"
"""The version whose webhooks have upstream's names, without a version."""


TIMEOUT = 3
"""Seconds that a write of a job waits for an operator that hangs; upstream's is the default of 10."""

_CHANGED = "has({new}) ? !has({old}) || {new} != {old} : has({old})"

MATCH_CONDITIONS = (
    # Also with policy Fail and without the operator, a job can be deleted, and controllers can release it.
    {"name": "not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
    {
        "name": "created-or-changed",
        "expression": " || ".join(
            (
                "oldObject == null",
                *(
                    f"({_CHANGED.format(new=f'object.{field}', old=f'oldObject.{field}')})"
                    for field in ("spec", "metadata.annotations")
                ),
            )
        ),
    },
)
"""All must be true for a request to be sent. What a webhook judges is the spec, and the annotations of a job."""


_UPSTREAM = {DI_MUTATING: "m{kind}.kb.io", DI_VALIDATING: "v{kind}.kb.io"}
"""The configurations of DI-orchestrator -> the names of the webhooks in each."""


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
    """The configuration of webhooks that `service` serves, given by `name` and `namespace`. `policy` is not that of
    webhooks which only warn: without the operator these are never missed."""
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
                "failurePolicy": policy if webhook.refuses else "Ignore",
                "sideEffects": "None",
                "timeoutSeconds": TIMEOUT,
                "matchConditions": [dict(condition) for condition in MATCH_CONDITIONS],
                "admissionReviewVersions": ["v1"],
            }
            for webhook in webhooks
        ],
    }


def _name(webhook: Webhook) -> str:
    if webhook.configuration in _UPSTREAM:
        return _UPSTREAM[webhook.configuration].format(kind=webhook.resource.kind.lower())
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


def refusing(webhooks: Iterable[Webhook]) -> list[int]:
    """The places in a configuration of webhooks that may refuse, to which a failure policy applies."""
    return [index for index, webhook in enumerate(webhooks) if webhook.refuses]


def required_webhooks() -> Component:
    """A kustomize component that sets the failure policy Fail: without the operator no job is created or updated. It
    includes the webhooks of DIJobs, if the installation has them."""
    own = listed_webhooks(kinds_with_webhooks())
    patches = []
    for configuration, webhooks in (own | listed_webhooks(all_kinds())).items():
        operations = [
            {"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": "Fail"}
            for index in refusing(webhooks)
        ]
        patches.append(json_patch({"kind": configuration.resource.kind, "name": configuration.name}, operations))
    return Component(needs=[needed(each) for each in own], patches=patches)


def needed(configuration: Configuration) -> Needed:
    return Needed(configuration.resource.api_version, configuration.resource.kind, configuration.name)
