"""Admission webhooks of the operator: each kind's `judge` and `default` as handlers, and the certificates of their
server.

Paths, names and messages are those of training-operator (`pkg/webhooks`, `pkg/cert`). Every kind is served, also one
that `--enable-scheme` leaves out: a cluster may have one webhook configuration for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainop.engine.admission import Judgement
from trainop.engine.fields import sentence
from trainop.engine.kind import Kind, admit_all, warn
from trainop.engine.root_cause import one_line
from trainop.runtime import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    AdmissionRequest,
    AdmissionResponse,
    Json,
    Key,
    Resource,
    RotationOptions,
    Unstructured,
    allow,
    defaulting,
    deny,
)
from trainop.runtime.lowlevel import (
    UNREADABLE,
    AdmissionHandler,
    Configuration,
    cut,
    mutating_path,
    refuse,
    validating_path,
)

VALIDATING = Configuration(VALIDATING_WEBHOOK_CONFIGURATIONS, "validator.training-operator.kubeflow.org")
MUTATING = Configuration(MUTATING_WEBHOOK_CONFIGURATIONS, "defaulter.training-operator.kubeflow.org")
DI_VALIDATING = Configuration(VALIDATING_WEBHOOK_CONFIGURATIONS, "di-validating-webhook-configuration")
DI_MUTATING = Configuration(MUTATING_WEBHOOK_CONFIGURATIONS, "di-mutating-webhook-configuration")
"""The webhook configurations that get the `caBundle`."""
_CONFIGURATIONS = {"diengine.opendilab.org": (DI_MUTATING, DI_VALIDATING)}
"""API group -> the configurations of its webhooks, if they are not those of training-operator."""

MAX_WARNINGS = 10
MAX_WARNING_LENGTH = 256
"""Bytes of one warning, the API server's limit (apiserver `pkg/endpoints/filters/warning.go`)."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook of a kind: how the server answers it, and what its entry in a configuration is made of."""

    resource: Resource
    """The kind, in the version whose requests are sent to the webhook."""
    configuration: Configuration
    """The configuration that lists it."""
    path: str
    """Upstream's, such as `/validate-kubeflow-org-v1-pytorchjob`."""
    handler: AdmissionHandler
    refuses: bool = True
    """Whether it may refuse or change a request. Without one that only warns, nothing is lost but the warnings."""


def webhooks_of(kinds: Iterable[Kind]) -> list[Webhook]:
    """The webhooks of all kinds, by the name of the kind: at most one that sets defaults and one that validates, then
    those of its `template_resources`."""
    found = []
    for kind in sorted(kinds, key=lambda kind: (kind.resource.kind.lower(), kind.resource.version)):
        resource = kind.resource
        mutating, judging = _CONFIGURATIONS.get(resource.group, (MUTATING, VALIDATING))
        if kind.default is not None:
            found.append(Webhook(resource, mutating, mutating_path(resource), defaulting(kind.default)))
        if kind.judge is not admit_all:
            found.append(Webhook(resource, judging, validating_path(resource), build_handler(kind.admit)))
        found += [
            Webhook(each, judging, validating_path(each), build_handler(warn), refuses=False)
            for each in kind.template_resources
        ]
    return found


def build_handler(admit: Callable[[Unstructured, Unstructured | None], Judgement]) -> AdmissionHandler:
    """The handler that judges objects by `admit` (new, old) when they are created or updated. All other operations are
    admitted."""

    def answer(request: AdmissionRequest) -> AdmissionResponse:
        if request.operation not in ("CREATE", "UPDATE") or request.object is None:
            return allow()
        try:
            new, old = _read(request.object), _read(request.old_object)
        except (*UNREADABLE, AttributeError) as error:  # only from callers other than the API server
            return refuse(400, cut(f"the object cannot be decoded: {error}"))
        return respond(admit(new, old)) if new is not None else allow()

    return answer


def _read(raw: Json | None) -> Unstructured | None:
    return None if raw is None else Unstructured(raw)


def respond(judgement: Judgement) -> AdmissionResponse:
    """Admits the object or denies it with 403 Forbidden: one error as it is, several as `[e1, e2]`, bounded in
    length."""
    warnings = tuple(_bound(judgement.warnings))
    if not judgement.errors:
        return allow(*warnings)
    return deny(sentence(judgement.errors, judgement.more_errors), *warnings)


def _bound(warnings: Sequence[str]) -> Iterable[str]:
    """At most `MAX_WARNINGS`, each one line and cut short: the API server drops what exceeds its own limits, and any
    with a control character (apimachinery `pkg/util/net/http.go`, `NewWarningHeader`)."""
    yield from (one_line(warning, MAX_WARNING_LENGTH) for warning in warnings[:MAX_WARNINGS])
    if len(warnings) > MAX_WARNINGS:
        yield f"{len(warnings) - MAX_WARNINGS:,} more warnings are left out"


def configurations_of(webhooks: Iterable[Webhook]) -> tuple[Configuration, ...]:
    """The configurations that list the webhooks."""
    return tuple(dict.fromkeys(webhook.configuration for webhook in webhooks))


def rotation_options(
    namespace: str, service: str, secret: str, configurations: tuple[Configuration, ...]
) -> RotationOptions:
    """The certificates of upstream's webhook server: one Secret and one DNS name."""
    return RotationOptions(
        secret=Key(namespace, secret),
        names=(f"{service}.{namespace}.svc",),
        configurations=configurations,
        authority="training-operator-ca",
        organization="training-operator",
    )
